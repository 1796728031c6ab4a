"""Runs a Python program that listens on 127.0.0.1, for connections of the same user of this machine only.

    python own_user.py PROGRAM ARGUMENTS…

For a server without passwords. The kernel tells who holds the other end of a connection; whoever else does is hung up
on before a byte is read.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

_accept = socket.socket.accept


def _listed(address: tuple[str, int]) -> str:
    """As /proc/net/tcp writes it."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


def is_own(connection: socket.socket) -> bool:
    ends = [_listed(connection.getpeername()), _listed(connection.getsockname())]
    with open("/proc/self/net/tcp") as table:
        for row in map(str.split, table):
            if row[1:3] == ends:
                return row[7] == str(os.getuid()) and row[9] != "0"  # no inode: closed, and then the user says nothing
    return False


def accept(listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
    while True:
        connection, address = _accept(listening)
        try:
            if is_own(connection) or is_own(connection):  # a row can be missed while the table changes
                return connection, address
        except OSError:  # gone already
            pass
        connection.close()


if __name__ == "__main__":
    socket.socket.accept = accept
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")

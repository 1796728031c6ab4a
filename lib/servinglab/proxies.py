"""Traffic with a server on this machine goes through no proxy, whatever the environment says about the network."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_HERE = ("127.0.0.1", "localhost", "::1")


def spare_the_proxy(env: MutableMapping[str, str] = os.environ) -> None:
    """No proxy of this environment leads to a server on this machine: add that to the user's own exceptions.

    Of `no_proxy` and `NO_PROXY` some programs read only one. In both, "*" stands for everything if it stands alone, but
    not for gRPC, which has a variable of its own.
    """
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        value = next((env[key] for key in (name, "no_proxy", "NO_PROXY") if key in env), "")
        there = value.replace(" ", "").split(",")
        if value != "*" or name == "no_grpc_proxy":
            env[name] = ",".join(filter(None, [value, *(host for host in _HERE if host not in there)]))

"""Which offline document store keeps what it has acknowledged? Servers are killed while they write, many times.

    python benchmarks/document_stores.py [--rounds 25] [--seed 0] [--json]

In every round four clients write as fast as they can: new documents, and new versions of their own older ones. After a
random moment the server and all its processes get SIGKILL; it starts again on the same folder, and every write that
was acknowledged in this or an earlier round must be there, whole. A kill leaves what the kernel holds already, so it
says nothing about a loss of power: for that, fsync calls for each acknowledged write are counted, where strace is
installed (and one client writes at a time).

Candidates
    secantus            SecantusDB 0.7.0b3, which speaks MongoDB's protocol; write concern {w: 1}, as clients have it
    secantus_journal    the same, write concern {w: "majority", j: true}
    secantus_sync       the same, started with --sync-on-commit
    postgresql          PostgreSQL 16.2 as the wheel pgserver ships it; documents are JSONB in one table. It needs
                        pip install pgserver==0.1.4 "psycopg[binary]", which nothing else in the course uses

Keys of --json, for each candidate
    rounds, acknowledged, lost      lost: acknowledged writes that were missing, older or damaged afterwards
    start_s, recovery_s             empty start; start after a kill until all documents are read: median, and the worst
    writes_per_second               of the four clients together, median of the rounds
    fsyncs_per_write                null without strace
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

import psutil

CLIENTS = 4
HOST = "127.0.0.1"
OWN_USER = Path(__file__).parents[1] / "labs" / "vlm_clip" / "cliplab" / "own_user.py"  # as the lab starts it
TEXT = "A small round picture of a thing that nobody has to buy. " * 4  # about as long as a record of a catalogue


def document(key: str, version: int) -> dict:
    return {"_id": key, "version": version, "text": f"{key} {version} {TEXT}"}


class Secantus:
    """SecantusDB as a process. Its clients are MongoClients."""

    def __init__(self, folder: Path, *options: str, journal: bool = False) -> None:
        self.folder, self.options, self.journal = folder, options, journal

    def start(self) -> None:
        program = shutil.which("secantusd-py", path=str(Path(sys.executable).parent))
        command = [sys.executable, OWN_USER, program, "--host", HOST, "--port", "0"]
        command += ["--storage-path", self.folder / "data", *self.options]
        log = self.folder / "log"
        with open(log, "w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        while not (found := re.search(r"listening on \S+:(\d+)", log.read_text())):
            if self.process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.01)
        self.port = int(found[1])

    def client(self):
        """(write(document, new), read() -> documents, close())."""
        import pymongo

        client = pymongo.MongoClient(
            HOST, self.port, directConnection=True, serverSelectionTimeoutMS=20_000, retryWrites=False
        )
        concern = pymongo.WriteConcern(w="majority", j=True) if self.journal else pymongo.WriteConcern(w=1)
        things = client.shop.get_collection("things", write_concern=concern)

        def write(record, new):
            if new:
                things.insert_one(record)
            else:
                assert things.replace_one({"_id": record["_id"]}, record).matched_count == 1

        return write, lambda: list(things.find()), client.close


class PostgreSQL:
    """The server of the wheel pgserver. PostgreSQL refuses to run as root: then it runs as nobody, who may pass closed
    folders. (pgserver's own get_server makes a user "pgserver" instead, and opens every folder above to everyone.)"""

    def __init__(self, folder: Path) -> None:
        import pgserver

        self.folder, self.data = folder, folder / "data"
        self.programs = Path(pgserver.__file__).parent / "pginstall" / "bin"
        self.prefix = []
        if os.geteuid() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, 65534, 65534)
            capability = "+dac_override,+dac_read_search"
            self.prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            self.prefix += [f"--inh-caps={capability}", f"--ambient-caps={capability}"]
        options = ["-U", "course", "--auth=trust", "--encoding=utf8", "--no-locale"]
        subprocess.run(
            [*self.prefix, self.programs / "initdb", "-D", self.data, *options],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        self.created = False

    def start(self) -> None:
        import psycopg

        # A socket file that only its user may open, because who gets in may run programs. Shared memory in the data
        # folder, not in /dev/shm, where it would stay after the last kill.
        settings = ["-h", "", "-k", self.folder, "-c", "unix_socket_permissions=0700"]
        settings += ["-c", "dynamic_shared_memory_type=mmap"]
        with open(self.folder / "log", "w") as output:
            self.process = subprocess.Popen(
                [*self.prefix, self.programs / "postgres", "-D", self.data, *settings],
                stdout=output, stderr=output, cwd="/",
            )  # fmt: skip
        while True:
            try:
                with self.connect() as connection:
                    if not self.created:
                        connection.execute("CREATE TABLE things (id text PRIMARY KEY, document jsonb NOT NULL)")
                        self.created = True
                    return
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.01)

    def connect(self):
        import psycopg

        return psycopg.connect(f"host={self.folder} user=course dbname=postgres connect_timeout=20", autocommit=True)

    def client(self):
        from psycopg.types.json import Jsonb

        connection = self.connect()

        def write(record, new):
            if new:
                connection.execute("INSERT INTO things VALUES (%s, %s)", (record["_id"], Jsonb(record)))
            else:
                sql = "UPDATE things SET document = %s WHERE id = %s"
                assert connection.execute(sql, (Jsonb(record), record["_id"])).rowcount == 1

        return write, lambda: [row[0] for row in connection.execute("SELECT document FROM things")], connection.close


def kill(server) -> None:
    """SIGKILL to the server and to every process it has started, at once; returns when none is left."""
    process = psutil.Process(server.process.pid)
    family = [process, *process.children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGKILL)
    server.process.wait()
    _, alive = psutil.wait_procs(family[1:], timeout=10)
    assert not alive


def client(server, name: str, seed: int, acknowledged: dict[str, int], going: threading.Event) -> None:
    """Write until the server is gone. Keys start with the client's name, so no other client writes them."""
    randomness, own = random.Random(seed), []
    write, _, close = server.client()
    with contextlib.suppress(Exception):  # the server was killed, which each driver says in its own way
        while going.is_set():
            new = len(own) < 3 or randomness.random() < 0.7
            key = f"{name}-{len(own)}" if new else randomness.choice(own)
            record = document(key, acknowledged.get(key, 0) + 1)
            write(record, new)
            acknowledged[key] = record["version"]
            if new:
                own.append(key)
    with contextlib.suppress(Exception):
        close()


def lost(stored: list[dict], acknowledged: dict[str, int]) -> int:
    """How many acknowledged documents are missing, older than acknowledged, or not what was written."""
    whole = {}
    for record in stored:
        if record == document(record["_id"], record["version"]):
            whole[record["_id"]] = record["version"]
    return sum(whole.get(key, 0) < version for key, version in acknowledged.items())


def read(server) -> list[dict]:
    _, everything, close = server.client()
    try:
        return everything()
    finally:
        close()


def crash(server, rounds: int, seed: int) -> dict:
    randomness, acknowledged, total, losses = random.Random(seed), {}, 0, 0
    started = time.perf_counter()
    server.start()
    first, recoveries, speeds = time.perf_counter() - started, [], []
    for number in range(rounds):
        going, before = threading.Event(), sum(acknowledged.values())
        going.set()
        clients = [
            threading.Thread(target=client, args=(server, f"{number}-{each}", seed + each, acknowledged, going))
            for each in range(CLIENTS)
        ]
        moment, start = randomness.uniform(0.2, 1.2), time.perf_counter()
        for each in clients:
            each.start()
        time.sleep(moment)
        kill(server)
        seconds = time.perf_counter() - start
        going.clear()
        for each in clients:
            each.join()
        written = sum(acknowledged.values()) - before
        total += written
        speeds.append(written / seconds)
        started = time.perf_counter()
        server.start()
        stored = read(server)
        recoveries.append(time.perf_counter() - started)
        missing = lost(stored, acknowledged)
        losses += missing
        if missing:  # counted once: go on from what is there
            acknowledged = {record["_id"]: record["version"] for record in stored}
    kill(server)
    return {
        "rounds": rounds,
        "acknowledged": total,
        "lost": losses,
        "start_s": round(first, 2),
        "recovery_s": round(statistics.median(recoveries), 2),
        "recovery_worst_s": round(max(recoveries), 2),
        "writes_per_second": round(statistics.median(speeds)),
    }


def fsyncs(server, writes: int = 50) -> float | None:
    """fsync and fdatasync calls of the server and its children for each write of one client; None without strace."""
    if not shutil.which("strace"):
        return None
    server.start()
    write, _, close = server.client()
    write(document("warm", 1), True)
    time.sleep(0.5)
    process = psutil.Process(server.process.pid)
    traced = [f"-p{each.pid}" for each in (process, *process.children(recursive=True))]
    with tempfile.NamedTemporaryFile("r") as calls:
        command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", calls.name, *traced]
        tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(1)
        for number in range(writes):
            write(document(f"traced-{number}", 1), True)
        tracer.terminate()
        tracer.wait()
        count = len(re.findall(r"f(?:data)?sync\(", calls.read()))
    close()
    kill(server)
    return round(count / writes, 2)


def candidates(folder: Path) -> dict:
    return {
        "secantus": lambda: Secantus(folder),
        "secantus_journal": lambda: Secantus(folder, journal=True),
        "secantus_sync": lambda: Secantus(folder, "--sync-on-commit"),
        "postgresql": lambda: PostgreSQL(folder),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="kills of each candidate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one candidate")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    found = {}
    for name in candidates(Path()):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="documents-") as made:
                found[name] = crash(candidates(Path(made))[name](), options.rounds, options.seed)
            with tempfile.TemporaryDirectory(prefix="documents-") as made:
                found[name]["fsyncs_per_write"] = fsyncs(candidates(Path(made))[name]())
            if not options.json:
                print(name, found[name], flush=True)
    found |= {"clients": CLIENTS, "seed": options.seed, "date": str(date.today()), "machine": platform.machine()}
    found |= {"cores": len(os.sched_getaffinity(0)), "load_average": round(os.getloadavg()[0], 1)}
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

"""Start a real tritonserver, wait until every model is ready, stop it. Nothing of it outlives the Python that asked.

Taught by notebooks 00 and 03; its flags are those a learner would type.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from servinglab import supervisor, triton_install, triton_log
from servinglab.triton_install import ServerError
from servinglab.triton_process import HOST, PortTaken, TritonProcess, choose_ports, http_status, port_error

try:
    from servinglab.assets import cache_dir
except ImportError:  # until assets exists

    def cache_dir() -> Path:
        return Path(os.environ.get("SERVINGLAB_CACHE") or Path.home() / ".cache" / "servinglab")


__all__ = ["ServerError", "TritonServer", "running"]

EXIT_SECONDS = 2  # Triton waits so long for requests in flight
PORT_ATTEMPTS = 5
LOGS_KEPT = 20


class TritonServer:
    """A Triton on this machine. Use it as a context manager, or call `start()` and `stop()`; both may be called twice.

    Args:
        repository: folder that holds the model folders.
        models: names to load; None loads every folder with a config.pbtxt or a version folder.
        http_port, grpc_port, metrics_port: fixed ports; None takes free ones (read them from `http_url`, `grpc_url`).
        log_path: Triton's log; None writes one under the cache folder's `run`.
        timeout: seconds until every model must be ready.
        auto_complete: let Triton complete the configs, which loads each model once more (ours are complete).
        extra_args: more tritonserver flags, such as "--log-verbose=1"; metrics must stay allowed.

    Raises (from `start`): ServerError with the log's own reason.
    """

    def __init__(
        self, repository: str | Path, *, models: Iterable[str] | None = None, http_port: int | None = None,
        grpc_port: int | None = None, metrics_port: int | None = None, log_path: str | Path | None = None,
        timeout: float = 120.0, auto_complete: bool = False, extra_args: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.repository = Path(repository).expanduser().absolute()
        self.requested = [models] if isinstance(models, str) else None if models is None else list(models)
        self.timeout = timeout
        self.log_path: Path | None = Path(log_path).absolute() if log_path else None
        self._fixed_ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._own_log = log_path is None
        self._flags = ([] if auto_complete else ["--disable-auto-complete-config"]) + list(extra_args)
        self._process: TritonProcess | None = None
        self._attached = False
        self.http_url: str | None = None
        self.grpc_url: str | None = None
        self.metrics_url: str | None = None

    @classmethod
    def attach(cls, grpc_url: str, http_url: str | None = None) -> TritonServer:
        """A server that somebody else started; `stop()` leaves it alone. grpc_url is "host:port", http_url "http://host:port"."""
        server = cls(".")
        server._attached = True
        server.grpc_url = grpc_url.removeprefix("grpc://").removeprefix("http://").rstrip("/")
        if http_url is not None:
            server.http_url = ("" if "://" in http_url else "http://") + http_url.rstrip("/")
        if not server.ready():
            raise ServerError(f"No Triton answers at {grpc_url}: is the server running, and is this its gRPC port?")
        return server

    @property
    def pid(self) -> int | None:
        """Process id of tritonserver, None when it does not run or is not ours."""
        return self._process.pid if self._process and self._process.alive() else None

    def start(self) -> TritonServer:
        """Start and wait until `/v2/health/ready` and every model are ready. On a started server: no effect."""
        if self._attached or self.pid is not None:
            return self
        self.stop()
        triton_install.require_platform()
        triton_install.require_install()
        names = self._model_names()
        triton_install.require_shm(len(names))
        for attempt in range(PORT_ATTEMPTS):
            ports = choose_ports(self._fixed_ports)
            log = self._new_log()
            self._process = TritonProcess(self._command(names, ports), triton_install.environment(), log)
            try:
                self._process.wait_ready(names, ports, self.timeout)
                break
            except PortTaken as taken:
                self._process.stop(at_once=True)
                service = next((name for name, port in ports.items() if port == taken.port), "http")
                if self._fixed_ports[service] or attempt == PORT_ATTEMPTS - 1:
                    raise port_error(taken.port, service, "another program took it") from None
            except BaseException:  # also Ctrl-C: nothing may stay behind
                self._process.stop(at_once=True)
                raise
        self.http_url = f"http://{HOST}:{ports['http']}"
        self.grpc_url = f"{HOST}:{ports['grpc']}"
        self.metrics_url = f"http://{HOST}:{ports['metrics']}/metrics"
        return self

    def stop(self) -> None:
        """End the server, its stubs and its shared memory; no effect on an attached or ended one."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if not self._attached:
            self.http_url = self.grpc_url = self.metrics_url = None

    def __enter__(self) -> TritonServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "attached" if self._attached else f"pid {self.pid}" if self.pid else "stopped"
        return f"TritonServer(grpc {self.grpc_url}, http {self.http_url}, {state})"

    def announce(self) -> Path:
        """Let `running()` of other processes find this server; forgotten when it ends. Returns the state file."""
        state = {
            "pid": self.pid, "started": supervisor.start_time(self.pid), "grpc_url": self.grpc_url,
            "http_url": self.http_url, "metrics_url": self.metrics_url,
            "log": str(self.log_path), "repository": str(self.repository),
        }  # fmt: skip
        path = cache_dir() / "run" / f"server-{time.time_ns()}.json"
        _make_folder(path.parent)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(state))
        draft.rename(path)
        return path

    # --- what a running server can be asked -------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether the server and all of its loaded models are ready; False also when it does not answer."""
        if self.http_url:
            return http_status(self.http_url, "/v2/health/ready") == 200
        try:
            return bool(self.grpc_url) and self._ask("ServerReady").ready
        except ServerError:
            return False

    def models(self) -> list[str]:
        """Names of the models that are ready now."""
        return [entry["name"] for entry in self.repository_index() if entry["state"] == "READY"]

    def repository_index(self) -> list[dict[str, str]]:
        """Every model Triton sees: name, version, state ("READY", "UNAVAILABLE" or "") and reason."""
        found = self._ask("RepositoryIndex").models
        return [{"name": m.name, "version": m.version, "state": m.state, "reason": m.reason} for m in found]

    def load(self, name: str) -> None:
        """Load (or load again) one model of the repository."""
        mark = self.log_path.stat().st_size if self.log_path else 0
        try:
            self._ask("RepositoryModelLoad", self.timeout, model_name=name)
        except ServerError as error:  # the answer often says less than the log does
            reason = self.log_path and triton_log.log_error(self.log_path, mark)
            raise ServerError(f"Triton did not load '{name}': {reason or error}") from None

    def unload(self, name: str, *, timeout: float = 30.0) -> None:
        """Unload one model and wait until it is gone (Triton itself answers earlier)."""
        self._ask("RepositoryModelUnload", model_name=name)
        deadline = time.monotonic() + timeout
        while any(m["name"] == name and m["state"] in ("READY", "UNLOADING") for m in self.repository_index()):
            if time.monotonic() > deadline:
                raise ServerError(f"Model '{name}' is still unloading after {timeout:.0f} s: is a request running?")
            time.sleep(0.02)

    def _ask(self, method: str, timeout: float = 5.0, **fields: str):
        """One call of the gRPC service; the answer message."""
        from servinglab import kserve  # not at the top: importing gRPC takes longer than half a second

        if not self.grpc_url:
            raise ServerError("This server is not running: call start() first.")
        with kserve.open_channel(self.grpc_url) as channel:
            try:
                return kserve.call(channel, method, timeout, **fields)
            except kserve.grpc.RpcError as error:
                found = kserve.as_client_error(error, self.grpc_url, timeout)
                raise ServerError(triton_log.clean(str(found))) from None

    # --- starting ---------------------------------------------------------------------------------------------

    def _model_names(self) -> list[str]:
        where = f"the model repository {self.repository}"
        try:
            folders = sorted(p for p in self.repository.iterdir() if p.is_dir())
            found = [p.name for p in folders if not p.name.startswith(".") and _is_model(p)]
        except FileNotFoundError:
            raise ServerError(f"There is no folder {self.repository}: give the path of a model repository.") from None
        except NotADirectoryError:
            raise ServerError(f"{self.repository} is a file: give the folder that holds the model folders.") from None
        except PermissionError as error:
            raise ServerError(f"Cannot read {error.filename}, part of {where}: you lack the permission.") from None
        if not found:
            raise ServerError(f"No model in {where}: a model is a folder with a config.pbtxt and a folder 1/.")
        missing = [name for name in self.requested or [] if name not in found]
        if missing:
            raise ServerError(f"No model '{missing[0]}' in {where}: it holds {', '.join(found)}.")
        if self.requested == []:
            return []
        return self.requested or found

    def _new_log(self) -> Path:
        if self._own_log:
            folder = cache_dir() / "run"
            _make_folder(folder)
            old = sorted(folder.glob("triton-*.log"))
            for path in old[: max(0, len(old) - LOGS_KEPT + 1)]:
                path.unlink(missing_ok=True)
            name = f"triton-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10**6}.log"
            self.log_path = folder / name
        else:
            _make_folder(self.log_path.parent)
        self.log_path.write_bytes(b"")
        return self.log_path

    def _command(self, names: list[str], ports: dict[str, int]) -> list[str]:
        return [
            str(triton_install.locate() / "bin" / "tritonserver"),
            f"--model-repository={self.repository}",
            f"--backend-directory={triton_install.backend_directory(cache_dir())}",
            "--backend-config=python,shm-region-prefix-name={shm_prefix}",
            f"--backend-config=python,stub-timeout-seconds={max(30, int(self.timeout))}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in names),
            *(f"--{service}-address={HOST}" for service in ports),
            *(f"--{service}-port={port}" for service, port in ports.items()),
            f"--exit-timeout-secs={EXIT_SECONDS}",
            *self._flags,
        ]


def _is_model(folder: Path) -> bool:
    return (folder / "config.pbtxt").is_file() or any(p.name.isdigit() for p in folder.iterdir() if p.is_dir())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServerError(f"Cannot write to {folder} ({error.strerror}): set SERVINGLAB_CACHE.") from None


# --- servers that outlive one command (`course serve`, found by `course ask`) ------------------------------------


def running() -> list[TritonServer]:
    """Servers announced on this machine that answer now, newest first, each attached; forgets those that are gone."""
    found = []
    for path in sorted((cache_dir() / "run").glob("server-*.json"), reverse=True):
        try:
            state = json.loads(path.read_text())
            alive = supervisor.start_time(state["pid"]) == state["started"]
        except (OSError, ValueError, KeyError):
            alive = False
        if not alive:
            path.unlink(missing_ok=True)
            continue
        try:
            server = TritonServer.attach(state["grpc_url"], state["http_url"])
        except ServerError:  # alive, not ready
            continue
        server.metrics_url, server.repository = state["metrics_url"], Path(state["repository"])
        server.log_path = Path(state["log"])
        found.append(server)
    return found

"""Start a real tritonserver, wait until every model is ready, stop it. Nothing of it outlives the Python that asked."""

import contextlib
import os
import re
import secrets
import shlex
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from servinglab.assets import cache_dir
from servinglab.client import channel_args
from servinglab.lane import refuse_tls, resolve_lane
from servinglab.repository import templates
from servinglab.scratch import shorten
from servinglab.server import install, process
from servinglab.server.install import ServerError, require_plain
from servinglab.triton_24_10 import clean

EXIT_SECONDS = 2  # Triton waits so long for requests in flight
PORT_ATTEMPTS = 5
# Whoever may load a model may bring its model.py along, and so runs code as the user of the server: a web page can send
# such a request, and so can other users of the machine. These interfaces want a key, the others are open to everybody.
RESTRICTED = "model-repository,shared-memory,trace,logging"
HEADER = "servinglab-admin"
LOCKS = [f"--{flag}={RESTRICTED}:{HEADER}={{key}}" for flag in ("http-restricted-api", "grpc-restricted-protocol")]
GRPC_PREFIX = "triton-grpc-protocol-"  # of the header's name, demanded by Triton


def typed(argv: Iterable[str]) -> str:
    """A command as one would type it, with $ADMIN_KEY for the administrator's key."""
    words = (word.replace("{key}", "ADMIN_KEY").replace("{shm_prefix}", "my_") for word in argv)
    return " ".join(shlex.quote(word).replace("=ADMIN_KEY", "=$ADMIN_KEY") for word in words)


class TritonServer:
    """A Triton on this machine. Use it as a context manager, or call `start()` and `stop()`; both may be called twice.

    Args:
        models: names to load; None loads every folder with a config.pbtxt or a version folder.
        http_port, grpc_port, metrics_port: fixed ports; None takes free ones (read them from `http_url`, `grpc_url`).
        timeout: seconds until every model must be ready.

    Raises (from `start`): ServerError with the log's own reason.
    """

    grpc_url: str | None = None
    http_url: str | None = None
    metrics_url: str | None = None
    admin_key: str | None = None

    def __init__(
        self, repository: str | Path, *, models: Iterable[str] | None = None, http_port: int | None = None,
        grpc_port: int | None = None, metrics_port: int | None = None, timeout: float = 120.0,
    ) -> None:  # fmt: skip
        self._repository = Path(repository).expanduser().absolute()
        self.requested = [models] if isinstance(models, str) else None if models is None else list(models)
        self.timeout = timeout
        self.log_path: Path | None = None
        self._fixed_ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._process: process.TritonProcess | None = None
        self._attached = False
        self._ran: list[str] = []

    @classmethod
    def attach(cls, grpc_url: str, http_url: str | None = None, *, admin_key: str | None = None) -> "TritonServer":
        """A server that somebody else started, at "host:port" and "http://host:port"; `stop()` leaves it alone.

        `admin_key`: its `admin_key`, without which a server of this course neither lists nor loads models.
        """
        refuse_tls(f"{grpc_url} {http_url or ''}".strip())
        server = TritonServer(".")
        server._attached, server.admin_key = True, admin_key
        server.grpc_url = grpc_url.rpartition("://")[2].rstrip("/")
        server.http_url = http_url and "http://" + http_url.rpartition("://")[2].rstrip("/")
        if not server.ready():
            cure = "is the server running, and is this its gRPC port, without TLS?"
            raise ServerError(f"No Triton answers at {grpc_url}: {cure}")
        return server

    @property
    def repository(self) -> Path:
        """Its model repository. Raises ServerError for an attached server."""
        if self._attached:
            cure = "unset SERVINGLAB_SERVER, and this notebook starts a server of its own"
            raise ServerError(f"The server at {self.grpc_url} was started elsewhere, and its files are there: {cure}.")
        return self._repository

    @property
    def pid(self) -> int | None:
        """Process id of tritonserver, None when it does not run or is not ours."""
        return self._process.pid if self._process and self._process.alive() else None

    @property
    def command_line(self) -> str:
        """The tritonserver command that ran, as one would type it, and where its log is; folders shortened."""
        words = [re.sub(r"^/.*/tritonserver$", "tritonserver", word) for word in self._ran]
        lines = textwrap.wrap(typed(words), 110, break_long_words=False, break_on_hyphens=False)
        return shorten((" \\\n    ".join(lines)) + f"\n# log: {self.log_path}")

    def start(self) -> "TritonServer":
        """Start and wait until `/v2/health/ready` and every model are ready. On a started server: no effect."""
        if self._attached or self.pid is not None:
            return self
        self.stop()
        names = self._model_names()
        self._check_machine(names)
        for attempt in range(PORT_ATTEMPTS):
            ports, log, self.admin_key = process.choose_ports(self._fixed_ports), self._new_log(), secrets.token_hex(24)
            self._ran, environment = self._command(names, ports)
            self._process = process.TritonProcess(self._ran, environment, log, self.admin_key)
            try:
                self._process.wait_ready(names, ports, self.timeout)
                break
            except process.PortTaken as taken:
                self._process.stop(at_once=True)
                service = next((name for name, port in ports.items() if port == taken.args[0]), "http")
                if self._fixed_ports[service] or attempt == PORT_ATTEMPTS - 1:
                    raise process.port_error(taken.args[0], service, "another program took it") from None
            except process.Aborted:
                self._process.stop(at_once=True)
                if attempt:
                    raise
            except BaseException:  # also Ctrl-C: nothing may stay behind
                self._process.stop(at_once=True)
                raise
        self.http_url = f"http://{process.HOST}:{ports['http']}"
        self.grpc_url = f"{process.HOST}:{ports['grpc']}"
        self.metrics_url = f"http://{process.HOST}:{ports['metrics']}/metrics"
        return self

    def stop(self) -> None:
        """End the server, its stubs and its shared memory; no effect on an attached or ended one."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if not self._attached:
            self.http_url = self.grpc_url = self.metrics_url = None

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what a running one can be asked and told ----------------------------------------------------------------

    @property
    def admin_headers(self) -> dict[str, str]:
        """Headers that a client of your own must send to list, load and unload models, over HTTP and over gRPC; for
        tritonclient: `client.load_model(name, headers=server.admin_headers)`."""
        return {HEADER: self.admin_key, GRPC_PREFIX + HEADER: self.admin_key} if self.admin_key else {}

    def ready(self) -> bool:
        """Whether the server and all of its loaded models are ready; False also when it does not answer."""
        with contextlib.suppress(ServerError):
            return self._ask(lambda client: client.is_server_ready(client_timeout=5))
        return False

    def models(self) -> list[str]:
        """Names of the models that are ready now: those that have statistics."""
        found = self._ask(lambda client: client.get_inference_statistics(client_timeout=5)).model_stats
        return sorted({model.name for model in found})

    def load(self, name: str) -> None:
        """Load (or load again) one model of the repository. Raises ServerError with the log's own reason."""
        if not self._attached:
            _require_loadable(self.repository, [name])
        mark = self.log_path.stat().st_size if self.log_path and self.log_path.exists() else 0
        try:
            options = {"headers": self.admin_headers, "client_timeout": self.timeout}
            self._ask(lambda client: client.load_model(name, **options))
        except ServerError as error:  # the answer often says less than the log does
            reason = self.log_path and process.log_error(process.read_log(self.log_path, mark))
            raise ServerError(f"Triton did not load '{name}': {reason or error}") from None

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        """What `call` gets from a tritonclient. Raises ServerError."""
        if not self.grpc_url:
            raise ServerError("This server is not running: call start() first.")
        try:
            with InferenceServerClient(url := self.grpc_url, channel_args=channel_args(url)) as client:
                return call(client)
        except InferenceServerException as error:
            if "restricted" in error.message():
                cure = "give TritonServer.attach(…, admin_key=…) that of the server object that started it"
                raise ServerError(f"This server wants a key for that: {cure}.") from None
            raise ServerError(f"{clean(error.message())}.") from None

    def announce(self) -> Path:
        """Let `running()` of other processes find this server; forgotten when it ends. Returns the state file."""
        return process.announce(self.pid, grpc_url=self.grpc_url, http_url=self.http_url)

    # --- starting ---------------------------------------------------------------------------------------------

    def _model_names(self) -> list[str]:
        where = f"the model repository {self.repository}"
        try:
            folders = sorted(p for p in self.repository.iterdir() if p.is_dir() and not p.name.startswith("."))
            found = [p.name for p in folders if (p / "config.pbtxt").is_file() or _versions(p)]
        except OSError as error:
            raise ServerError(f"Cannot read {where} ({error.strerror}): give the folder of the models.") from None
        if not found:
            raise ServerError(f"No model in {where}: a model is a folder with a config.pbtxt and a folder 1/.")
        if missing := [name for name in self.requested or [] if name not in found]:
            raise ServerError(f"No model '{missing[0]}' in {where}: it holds {', '.join(found)}.")
        names = found if self.requested is None else self.requested
        _require_loadable(self.repository, names)
        return names

    def _check_machine(self, names: list[str]) -> None:
        install.require_platform()
        if resolve_lane() == "embedded":
            install.require_install()
        else:
            install.on_path("tritonserver")
        install.require_plain_path(self.repository, "the model repository", "use another folder")
        install.require_plain_path(cache_dir(), "the cache", "set SERVINGLAB_CACHE to another folder")
        install.require_shm(len(names))

    def _new_log(self) -> Path:
        try:
            self.log_path = process.new_log()
            self.log_path.write_bytes(b" " * 4096)  # also on a full disk an empty file can be made
            self.log_path.write_bytes(b"")
        except OSError as error:
            where = error.filename or self.log_path
            raise ServerError(f"Cannot write the log {where} ({error.strerror}): set SERVINGLAB_CACHE.") from None
        return self.log_path

    def _command(self, names: list[str], ports: dict[str, int]) -> tuple[list[str], dict[str, str]]:
        """The command line and its environment; the supervisor puts the prefix and the key in."""
        program, environment = install.program(resolve_lane(), cache_dir())
        command = [
            *program,
            f"--model-repository={self.repository}",
            "--backend-config=python,shm-region-prefix-name={shm_prefix}",
            f"--backend-config=python,stub-timeout-seconds={max(30, int(self.timeout))}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in names),
            *(f"--{service}-address={process.HOST}" for service in ports),
            *(f"--{service}-port={port}" for service, port in ports.items()),
            f"--exit-timeout-secs={EXIT_SECONDS}",
            "--disable-auto-complete-config",  # ours are complete; it would load each model once more
            *LOCKS,
        ]
        return command, environment


def running() -> list[TritonServer]:
    """Announced servers that answer now, newest first, each attached; without the key of its administrator."""
    found = []
    for state in process.announced():
        with contextlib.suppress(ServerError):  # alive, not ready
            found.append(TritonServer.attach(state["grpc_url"], state["http_url"]))
    return found


# --- what of a model reaches the shell line by which Triton 24.10 starts it: only plain characters may ----------------


def _versions(folder: Path) -> list[Path]:
    return sorted((p for p in folder.iterdir() if p.name.isdigit() and p.is_dir()), key=lambda p: int(p.name))


def _require_loadable(repository: Path, names: Iterable[str]) -> None:
    """`read_plain_config` for these, and for the steps of ensembles among them, which Triton loads with them. A Python
    model without its file is refused, too: Triton 24.10 would never answer."""
    todo = list(names)
    for name in todo:  # which grows
        if not (config := read_plain_config(repository / name)):
            continue
        todo += {step.model_name for step in config.ensemble_scheduling.step}.difference(todo)
        for version in _versions(repository / name)[-1:] if config.backend == "python" else ():
            file = version / (config.default_model_filename or "model.py")
            if not file.exists():
                raise ServerError(f"The Python model has no {file.name}: {file} does not exist.")


def read_plain_config(folder: Path) -> pb.ModelConfig | None:
    """A model's ModelConfig, None where the folder has no config.pbtxt.

    Raises ServerError for one that the shell would misread: the line is `exec STUB REPOSITORY/MODEL/VERSION/FILE SHM …
    INSTANCE …`, after `source ENVIRONMENT/bin/activate &&` where a model brings its own Python. Triton itself takes
    only digits for VERSION, and only the folder's name for the model's. Also for one that does not parse here: Triton's
    own parser takes texts that this one does not, and what stands in those is then unknown.
    """
    file = folder / "config.pbtxt"
    require_plain(folder.name, f"The name of the folder {folder}", "choose another")
    if not os.path.lexists(file):
        return None
    try:
        config = templates.parse(text := templates.read_config(file))
    except OSError as error:
        raise ServerError(f"{file} cannot be read ({error.strerror}): write it anew, as plain UTF-8 text.") from None
    except templates.NO_CONFIG as error:
        line, reason = templates.place(error)
        reason = f"{reason.rstrip('.')}: correct the file; course repo lint {folder.parent} says more."
        for spot in [spot for spot in templates.placeholders(text) if spot.kind == "structural"][:1]:
            line, reason = spot.line, f"${{{spot.name}}} is not filled: course repo fill {folder.parent} {spot.name}=…"
        raise ServerError(f"{file}:{line}: {reason}") from None
    place = "EXECUTION_ENV_PATH"
    environment = config.parameters[place].string_value if place in config.parameters else ""
    words = [(place, environment.replace("$$TRITON_MODEL_DIRECTORY", ""))]  # which Triton fills
    words += [("The name of an instance_group", group.name) for group in config.instance_group]
    for what, word in [*words, ("default_model_filename", config.default_model_filename)]:
        require_plain(word, f"{file}: {what}", "choose another")
    return config

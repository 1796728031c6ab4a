"""What a running Triton can be asked and told, whoever started it: readiness, models, load, unload (notebook 03)."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from servinglab.server import log as triton_log
from servinglab.server.install import ServerError
from servinglab.server.process import http_status
from servinglab.triton_24_10 import clean, missing_model_file

# Whoever may load a model may bring its model.py along, and so runs code as the user of the server: a web page can send
# such a request, and so can other users of the machine. These interfaces want a key, the others are open to everybody.
RESTRICTED = "model-repository,shared-memory,trace,logging"
HEADER = "servinglab-admin"
GRPC_PREFIX = "triton-grpc-protocol-"  # of the header's name, demanded by Triton


def new_key() -> str:
    return secrets.token_hex(24)


def restricted(key: str) -> list[str]:
    """Flags of tritonserver, with which it refuses administration without this key in the header."""
    return [f"--{flag}={RESTRICTED}:{HEADER}={key}" for flag in ("http-restricted-api", "grpc-restricted-protocol")]


class TritonAdmin:
    """The part of TritonServer that only needs its addresses."""

    grpc_url: str | None = None
    http_url: str | None = None
    metrics_url: str | None = None
    log_path: Path | None = None
    admin_key: str | None = None
    timeout: float = 120.0

    @property
    def admin_headers(self) -> dict[str, str]:
        """Headers that a client of your own must send to list, load and unload models, over HTTP and over gRPC; for
        tritonclient: `client.load_model(name, headers=server.admin_headers)`."""
        return {HEADER: self.admin_key, GRPC_PREFIX + HEADER: self.admin_key} if self.admin_key else {}

    def ready(self) -> bool:
        """Whether the server and all of its loaded models are ready; False also when it does not answer."""
        if self.http_url:
            return http_status(self.http_url, "/v2/health/ready") == 200
        try:
            return bool(self.grpc_url) and self._ask("ServerReady").ready
        except ServerError:
            return False

    def models(self) -> list[str]:
        """Names of the models that are ready now: those that have statistics."""
        return sorted({model.name for model in self._ask("ModelStatistics").model_stats})

    def repository_index(self) -> list[dict[str, str]]:
        """Every model Triton sees: name, version, state ("READY", "UNAVAILABLE" or "") and reason."""
        found = self._ask("RepositoryIndex").models
        return [{"name": m.name, "version": m.version, "state": m.state, "reason": m.reason} for m in found]

    def load(self, name: str) -> None:
        """Load (or load again) one model of the repository."""
        mark = self.log_path.stat().st_size if self.log_path and self.log_path.exists() else 0
        try:
            self._ask("RepositoryModelLoad", self.timeout, mark, model_name=name)
        except ServerError as error:  # the answer often says less than the log does
            reason = self.log_path and triton_log.log_error(triton_log.read(self.log_path, mark))
            raise ServerError(f"Triton did not load '{name}': {reason or error}") from None

    def unload(self, name: str, *, timeout: float = 30.0) -> None:
        """Unload one model and wait until it is gone (Triton itself answers earlier)."""
        self._ask("RepositoryModelUnload", model_name=name)
        deadline = time.monotonic() + timeout
        while any(m["name"] == name and m["state"] in ("READY", "UNLOADING") for m in self.repository_index()):
            if time.monotonic() > deadline:
                raise ServerError(f"Model '{name}' is still unloading after {timeout:.0f} s: is a request running?")
            time.sleep(0.02)

    def _ask(self, method: str, timeout: float = 5.0, mark: int | None = None, **fields: str) -> Any:
        """One call of the gRPC service by its name; the answer message. mark: the log from this byte on is watched for
        what keeps the answer from ever coming."""
        from servinglab.old_client import kserve  # not at the top: importing gRPC takes longer than half a second

        if not self.grpc_url:
            raise ServerError("This server is not running: call start() first.")
        with kserve.open_channel(self.grpc_url) as channel:
            try:
                answer = kserve.call(channel, method, timeout, self.admin_headers, **fields)
                while not answer.done() and mark is not None:
                    time.sleep(0.05)
                    if self.log_path and (reason := missing_model_file(triton_log.read(self.log_path, mark))):
                        raise ServerError(reason)
                return answer.result()
            except kserve.grpc.RpcError as error:
                if "restricted" in str(error.details()):
                    raise ServerError(
                        f"This server wants a key for {method}: give TritonServer.attach(…, admin_key=…) that of the "
                        "server object that started it."
                    ) from None
                found = kserve.as_client_error(error, self.grpc_url, timeout)
                raise ServerError(clean(str(found))) from None

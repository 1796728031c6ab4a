"""What a running Triton can be asked and told, whoever started it: readiness, models, load, unload (notebook 03)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from servinglab import triton_log
from servinglab.triton_install import ServerError
from servinglab.triton_process import http_status


class TritonAdmin:
    """The part of TritonServer that only needs its addresses."""

    grpc_url: str | None = None
    http_url: str | None = None
    metrics_url: str | None = None
    log_path: Path | None = None
    timeout: float = 120.0

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
        mark = self.log_path.stat().st_size if self.log_path and self.log_path.exists() else 0
        try:
            self._ask("RepositoryModelLoad", self.timeout, lambda: self._hopeless(mark), model_name=name)
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

    def _hopeless(self, mark: int) -> bool:
        """Whether the log says since byte `mark` that a load will never end."""
        return bool(self.log_path and triton_log.hopeless(self.log_path, mark))

    def _ask(self, method: str, timeout: float = 5.0, hopeless: Callable[[], bool] = lambda: False, **fields: str):
        """One call of the gRPC service; the answer message."""
        from servinglab import kserve  # not at the top: importing gRPC takes longer than half a second

        if not self.grpc_url:
            raise ServerError("This server is not running: call start() first.")
        with kserve.open_channel(self.grpc_url) as channel:
            try:
                return kserve.call(channel, method, timeout, hopeless, **fields)
            except kserve.ClientError as error:
                raise ServerError(str(error)) from None
            except kserve.grpc.RpcError as error:
                found = kserve.as_client_error(error, self.grpc_url, timeout)
                raise ServerError(triton_log.clean(str(found))) from None

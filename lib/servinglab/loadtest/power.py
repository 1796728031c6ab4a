"""Energy while something runs: the counters of Intel and AMD CPUs (RAPL), or a GPU's power as nvidia-smi reads it.

Neither is there on most rented machines: then `Meter.joules` is None and `Meter.source` says why.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

RAPL = Path("/sys/class/powercap")
SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


class Meter:
    """`with Meter() as meter: …`, then `meter.joules`, `meter.seconds`, `meter.source`.

    A GPU is read twice a second, and its mean watts multiplied by the seconds; the CPU's counters are read at both
    ends, and a counter that has wrapped round once is put right. With a GPU, the CPU is left out.
    """

    def __init__(self, rapl: Path = RAPL, smi: tuple[str, ...] = SMI) -> None:
        self.joules: float | None = None
        self.seconds = 0.0
        self._smi, self._watts, self._done = smi, [], threading.Event()
        self._packages = [p for p in sorted(rapl.glob("*-rapl:*")) if p.name.count(":") == 1]
        self.source = "nvidia-smi" if self._gpu_watts() else "RAPL" if self._packages else (
            "not readable: no GPU that nvidia-smi knows, and no RAPL counter in /sys/class/powercap"
        )  # fmt: skip
        if self.source == "RAPL":
            try:
                self._counters("energy_uj")
            except OSError:
                self.source = "not readable: the RAPL counters need root's rights"

    @property
    def readable(self) -> bool:
        return not self.source.startswith("not readable")

    def __enter__(self) -> Meter:
        self._began = time.perf_counter()
        self._before = self._counters("energy_uj") if self.source == "RAPL" else []
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._done.set()
        self._thread.join()
        if self.source == "RAPL":
            ends = zip(self._before, self._counters("energy_uj"), self._counters("max_energy_range_uj"), strict=True)
            self.joules = sum(after - before + most * (after < before) for before, after, most in ends) / 1e6
        elif self._watts:
            self.joules = self.seconds * sum(self._watts) / len(self._watts)

    def _counters(self, name: str) -> list[int]:
        return [int((package / name).read_text()) for package in self._packages]

    def _sample(self) -> None:
        while self.source == "nvidia-smi" and not self._done.is_set():
            self._watts += self._gpu_watts()
            self._done.wait(0.5)

    def _gpu_watts(self) -> list[float]:
        """Watts of all GPUs together; empty when the command fails or a GPU does not tell."""
        try:
            answer = subprocess.run(self._smi, capture_output=True, text=True, timeout=10, check=True).stdout.split()
            return [sum(map(float, answer))] if answer else []
        except (OSError, subprocess.SubprocessError, ValueError):
            return []

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
        self._smi, self._watts, self._stop = smi, [], threading.Event()
        self._packages = [p for p in sorted(rapl.glob("*-rapl:*")) if p.name.count(":") == 1]
        if _gpu_watts(smi) is not None:
            self.source = "nvidia-smi"
        elif not self._packages:
            self.source = "not readable: no GPU that nvidia-smi knows, and no RAPL counter in /sys/class/powercap"
        else:
            try:
                self._counters()
                self.source = "RAPL"
            except OSError:
                self.source = "not readable: the RAPL counters need root's rights"

    @property
    def readable(self) -> bool:
        return not self.source.startswith("not readable")

    def __enter__(self) -> Meter:
        self._began = time.perf_counter()
        if self.source == "RAPL":
            self._before = self._counters()
        elif self.readable:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        if self.source == "RAPL":
            used = 0
            for package, before, after in zip(self._packages, self._before, self._counters(), strict=True):
                used += after - before
                if after < before:
                    used += int((package / "max_energy_range_uj").read_text())
            self.joules = used / 1e6
        elif self.readable:
            self._stop.set()
            self._thread.join()
            if self._watts:
                self.joules = self.seconds * sum(self._watts) / len(self._watts)

    def _counters(self) -> list[int]:
        return [int((package / "energy_uj").read_text()) for package in self._packages]

    def _sample(self) -> None:
        while not self._stop.is_set():
            if (watts := _gpu_watts(self._smi)) is not None:
                self._watts.append(watts)
            self._stop.wait(0.5)


def _gpu_watts(command: tuple[str, ...]) -> float | None:
    """Watts of all GPUs together; None when the command fails or a GPU does not tell."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return sum(map(float, answer.stdout.split())) if answer.stdout.strip() else None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None

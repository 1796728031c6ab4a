"""Energy while something runs: the counters of Intel and AMD CPUs (RAPL), or a GPU's power as nvidia-smi reads it.

Neither is there on most rented machines: then `Meter.joules` is None and `Meter.source` says why.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

RAPL = Path("/sys/class/powercap")
_SMI = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]


class Meter:
    """`with Meter() as meter: …`, then `meter.joules`, `meter.seconds`, `meter.source`.

    A GPU is read twice a second, and its mean watts multiplied by the seconds; the CPU's counters are read at both
    ends, and a counter that has wrapped round once is put right. With a GPU, the CPU is left out.
    """

    def __init__(self, rapl: Path = RAPL, smi: list[str] | None = None) -> None:
        self.joules: float | None = None
        self.seconds = 0.0
        self._smi = smi if smi is not None else _SMI if shutil.which("nvidia-smi") else None
        self._packages = [p for p in sorted(rapl.glob("*-rapl:*")) if p.name.count(":") == 1] if rapl.is_dir() else []
        self._watts: list[float] = []
        self._stop = threading.Event()
        self.source = self._find_source()

    @property
    def readable(self) -> bool:
        return not self.source.startswith("not readable")

    def _find_source(self) -> str:
        if self._smi and _gpu_watts(self._smi) is not None:
            return "nvidia-smi"
        self._smi = None
        if not self._packages:
            return "not readable: no GPU that nvidia-smi knows, and no RAPL counter in /sys/class/powercap"
        try:
            _counters(self._packages)
        except OSError:
            return "not readable: the RAPL counters need root's rights"
        return "RAPL"

    def __enter__(self) -> Meter:
        self._began = time.perf_counter()
        if self.source == "nvidia-smi":
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        elif self.source == "RAPL":
            self._before = _counters(self._packages)
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        if self.source == "nvidia-smi":
            self._stop.set()
            self._thread.join()
            if self._watts:
                self.joules = self.seconds * sum(self._watts) / len(self._watts)
        elif self.source == "RAPL":
            used = 0
            for package, before, after in zip(self._packages, self._before, _counters(self._packages), strict=True):
                wrapped = int((package / "max_energy_range_uj").read_text()) if after < before else 0
                used += after - before + wrapped
            self.joules = used / 1e6

    def _sample(self) -> None:
        while not self._stop.is_set():
            watts = _gpu_watts(self._smi)
            if watts is not None:
                self._watts.append(watts)
            self._stop.wait(0.5)


def _counters(packages: list[Path]) -> list[int]:
    return [int((package / "energy_uj").read_text()) for package in packages]


def _gpu_watts(command: list[str]) -> float | None:
    """Watts of all GPUs together; None when the command fails or a GPU does not tell."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return sum(float(line) for line in answer.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None

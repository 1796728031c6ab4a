"""What one request and one run of a load test say, and command lines of NVIDIA's load generators (notebook 11).

Definitions, as in NVIDIA's AIPerf (https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference):

* TTFT, time to first token: from the moment the request was due to the first response that holds text.
* ITL, inter-token latency of one request: (last response - first response) / (tokens - 1). Tokens, not responses.
* Goodput: requests a second that kept every limit.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servinglab import root
from servinglab.errors import CourseError


@dataclass(frozen=True)
class Trace:
    """One request. All times in seconds since the run began.

    due: when it should have been sent; sent: when it was; arrivals: when each response with text came; tokens: how many
    the answer has in all, None when it failed.
    """

    due: float
    sent: float
    arrivals: tuple[float, ...] = ()
    tokens: int | None = None

    @property
    def ok(self) -> bool:
        return self.tokens is not None

    @property
    def ttft(self) -> float:
        """Seconds from the due time, so that a load generator that is late cannot hide it; nan without an answer."""
        return self.arrivals[0] - self.due if self.ok else np.nan

    @property
    def itl(self) -> float:
        """Seconds a token after the first; nan for an answer of fewer than two tokens."""
        if not self.ok or self.tokens < 2:
            return np.nan
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds from the due time to the last response."""
        return self.arrivals[-1] - self.due if self.ok else np.nan


@dataclass(frozen=True)
class Run:
    """The requests of one load, and its seconds: from the first due time to the end of the last one, answered or
    failed, or a little longer."""

    traces: tuple[Trace, ...]
    seconds: float
    load: dict[str, float] = field(default_factory=dict)

    def values(self, name: str) -> np.ndarray:
        """ "ttft", "itl" or "latency" of every request that has one, in seconds."""
        values = np.array([getattr(trace, name) for trace in self.traces], dtype=float)
        return values[np.isfinite(values)]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all answers over the whole time, waiting included."""
        return sum(trace.tokens or 0 for trace in self.traces if trace.ok) / self.seconds

    @property
    def sent_per_second(self) -> float:
        """By the mean gap of what was sent: less than asked for if the load generator was late. nan for one request."""
        sent = [trace.sent for trace in self.traces]
        return (len(sent) - 1) / (max(sent) - min(sent)) if len(sent) > 1 else np.nan

    @property
    def requests_per_second(self) -> float:
        return sum(trace.ok for trace in self.traces) / self.seconds

    def kept(self, ttft: float, itl: float) -> np.ndarray:
        """Which requests were answered within both limits (seconds) [requests]. One token alone has no ITL to break."""
        return np.array([t.ok and t.ttft <= ttft and not t.itl > itl for t in self.traces], dtype=bool)

    def goodput(self, ttft: float, itl: float) -> float:
        """Requests a second within both limits."""
        return float(np.sum(self.kept(ttft, itl))) / self.seconds


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed, interpolated as numpy does; nan for no values."""
    return float(np.percentile(values, percent)) if len(values) else np.nan


def interval(values: Sequence[float], percent: float = 50, *, seed: int = 0) -> tuple[float, float]:
    """95 % interval (low, high) of a percentile, by the percentile bootstrap.

    The values are drawn again as if they were independent; those of neighbours in one run are not quite, so repeat the
    run as well. Raises CourseError for fewer than two values. Source: Efron and Tibshirani 1993, chapter 13.
    """
    from scipy.stats import bootstrap

    if len(values) < 2:
        raise CourseError(f"An interval needs at least two values, and there is {len(values)}: send more requests.")
    found = bootstrap(
        (np.asarray(values, dtype=float),), lambda drawn, axis: np.percentile(drawn, percent, axis=axis),
        n_resamples=1000, method="percentile", vectorized=True, random_state=seed,
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def one_connection(due: Sequence[float], busy: Sequence[float]) -> np.ndarray:
    """Seconds from when each request was due to when it was done, if all share one connection (Lindley's recursion).

    due: ascending, in seconds [n]; busy: seconds that each takes [n].
    """
    work = np.cumsum(busy)
    idle = np.maximum.accumulate(due - np.append(0, work[:-1]))  # seconds without work until each is taken up
    return idle + work - due


def perf_analyzer(
    data: Path | str, *, concurrency: tuple[int, int] = (1, 8), rates: tuple[float, float, float] | None = None
) -> list[str]:
    """perf_analyzer with the inputs of the file `data`; a decoupled model needs gRPC and --streaming.

    A closed loop of `concurrency` (first, last), or with `rates` (first, last, step) an open one of Poisson arrivals.
    """
    if rates is None:
        return _command("perf_analyzer_closed", data=data, first=concurrency[0], last=concurrency[1])
    return _command("perf_analyzer_open", data=data, first=rates[0], last=rates[1], step=rates[2])


def aiperf(tokenizer: Path | str, *, seed: int = 0, folder: Path | str = "aiperf", **load: Any) -> list[str]:
    """AIPerf against /v1/chat/completions, a closed loop. `tokenizer`: a folder; a name is looked up on the network.

    `load`: url, concurrency, requests, warmup (requests before them), input_tokens, output_tokens.
    """
    return _command("aiperf", tokenizer=tokenizer, seed=seed, folder=folder, **load)


def _command(tool: str, **values: Any) -> list[str]:
    return [word.format(**values) for word in root.data("load_tools.toml")[tool].split()]


def as_shell(command: Sequence[str]) -> str:
    """For pasting into a shell: one flag with its value a line."""
    return shlex.join(command).replace(" -", " \\\n  -")

"""What one request and one run say: TTFT, ITL, percentiles, throughput, goodput, and their intervals.

Definitions, as in NVIDIA's AIPerf (https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference):

* TTFT, time to first token: from the moment the request was due to the first response that holds text.
* ITL, inter-token latency of one request: (last response - first response) / (tokens - 1). Tokens, not responses: a
  response that holds five tokens counts as five, and the first response's wait is no part of it.
* Gaps: the waits between neighbouring responses, whatever they hold. A stall shows here, and not in the ITL.
* Goodput: requests a second that kept every limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from servinglab.errors import CourseError


@dataclass(frozen=True)
class Trace:
    """One request. All times in seconds since the run began.

    due: when it should have been sent; sent: when it was; arrivals: when each response with text came; tokens: how many
    tokens the answer has in all, None when it failed; error: why; ended: when it was known that no more would come.
    """

    due: float
    sent: float
    arrivals: tuple[float, ...] = ()
    tokens: int | None = None
    error: str = ""
    ended: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.error and bool(self.arrivals)

    @property
    def ttft(self) -> float:
        """Seconds from the due time, so that a load generator that is late cannot hide it; nan without an answer."""
        return self.arrivals[0] - self.due if self.ok else np.nan

    @property
    def itl(self) -> float:
        """Seconds a token after the first; nan for an answer of fewer than two tokens."""
        if not self.ok or (self.tokens or 0) < 2:
            return np.nan
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds from the due time to the last response."""
        return self.arrivals[-1] - self.due if self.ok else np.nan

    @property
    def gaps(self) -> np.ndarray:
        """Seconds between neighbouring responses [responses - 1]."""
        return np.diff(self.arrivals)


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
    def failed(self) -> int:
        return sum(not trace.ok for trace in self.traces)

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


def interval(
    values: Sequence[float], statistic: Callable[..., np.ndarray] = np.median, *, confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """Percentile bootstrap of a statistic: (low, high). `statistic` takes values and `axis`, as numpy's do.

    The values are drawn again as if they were independent; those of neighbours in one run are not quite, so repeat the
    run as well. Raises CourseError for fewer than two values. Source: Efron and Tibshirani 1993, chapter 13.
    """
    from scipy.stats import bootstrap

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        raise CourseError(f"An interval needs at least two values, and there is {len(values)}: send more requests.")
    found = bootstrap(
        (values,), statistic, n_resamples=1000, confidence_level=confidence, method="percentile", vectorized=True,
        random_state=seed,
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def at(percent: float) -> Callable[..., np.ndarray]:
    """The percentile as a statistic for `interval`."""
    return lambda values, axis=-1: np.percentile(values, percent, axis=axis)


def one_connection(due: Sequence[float], busy: Sequence[float]) -> np.ndarray:
    """Seconds from when each request was due to when it was done, if all share one connection (Lindley's recursion).

    due: ascending, in seconds [n]; busy: seconds that each takes [n].
    """
    done, waits = -np.inf, []
    for moment, seconds in zip(due, busy, strict=True):
        done = max(moment, done) + seconds
        waits.append(done - moment)
    return np.array(waits)


def cost_per_million(tokens_per_second: float, price_per_hour: float) -> float:
    """What a million tokens cost on a machine with this price an hour, in the same currency, if it is never idle."""
    if not tokens_per_second > 0 or not price_per_hour >= 0:
        raise CourseError(f"A cost needs a throughput above 0 and a price, not {tokens_per_second}, {price_per_hour}.")
    return price_per_hour / (tokens_per_second * 3600) * 1e6

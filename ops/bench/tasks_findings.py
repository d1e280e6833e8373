"""From runs to findings: medians over the rounds, and how many times better ours is than a peer."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ops.bench.tasks_latency import Latency
from ops.bench.tasks_metrics import MetricsCost
from ops.bench.tasks_recovery import Memory, Recovery
from ops.bench.tasks_restore import Restore
from ops.bench.tasks_sibling import Sibling
from ops.bench.tasks_systems import AT_LEAST_ONCE, EXACTLY_ONCE
from ops.bench.tasks_takeover import Takeover
from ops.bench.tasks_throughput import Throughput
from ops.bench.tasks_turns import counting

OURS = "ours"
OURS_BY_BATCH = "ours-batch"
KAFKA_STREAMS = "kafka-streams"
QUIX = "quix"

Run = Throughput | Latency | Restore | Sibling | Recovery | Memory | MetricsCost | Takeover
_AnyRun = TypeVar("_AnyRun", Throughput, Latency, Restore)

# The least that we accept: how many times better than the peer, in rate or in time.
_THROUGHPUT_BARS = {
    (OURS, KAFKA_STREAMS): 1.3,
    (OURS, QUIX): 6.0,
    (OURS_BY_BATCH, KAFKA_STREAMS): 2.5,
    (OURS_BY_BATCH, QUIX): None,
}
_RESTORE_BARS = {KAFKA_STREAMS: 1.0, QUIX: 6.0}
_LATENCY_LIMITS_MS = {
    (EXACTLY_ONCE, "p50_ms"): 35.0,
    (EXACTLY_ONCE, "p99_ms"): 90.0,
    (AT_LEAST_ONCE, "p50_ms"): 5.0,
    (AT_LEAST_ONCE, "p99_ms"): 25.0,
}
_RECOVERY_MEDIAN_S, _RECOVERY_WORST_S = 3.0, 6.0
_TAKEOVER_S = 10.0
_MEMORY_GROWTH = 1.1
_METRICS_BAR = 0.97
_SIBLING_RATE_BAR, _SIBLING_GAP_S = 0.5, 0.5
_TWO_WORKERS_RATE_BAR = 1.3
_TWO_WORKERS_CPU_BAR = 0.85


@dataclass(frozen=True)
class Finding:
    """A figure of ours beside another one; `ratio` says how many times better ours is."""

    name: str
    ours: float
    other: float
    unit: str
    against: str
    ratio: float
    bar: float | None
    note: str = ""

    @property
    def passes(self) -> bool:
        return self.bar is None or self.ratio >= self.bar

    def as_row(self) -> list[str]:
        bar = "" if self.bar is None else f"{self.bar:.2f}"
        return [
            self.name,
            _shown(self.ours),
            _shown(self.other),
            self.unit,
            f"{self.ratio:.2f}",
            bar,
            f"{self.against}; {self.note}" if self.note else self.against,
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "finding": self.name,
            "ours": round(self.ours, 3),
            "other": round(self.other, 3),
            "unit": self.unit,
            "against": self.against,
            "ratio": round(self.ratio, 3),
            "bar": self.bar,
            "passes": self.passes,
            **({"note": self.note} if self.note else {}),
        }


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def findings(runs: Sequence[Run], quiet_windows: int = 1) -> list[Finding]:
    """All that the runs have to say; nothing about systems that did not run.

    Of latency so many quiet windows of each system are wanted.
    """
    throughput = [run for run in runs if isinstance(run, Throughput)]
    latency = [run for run in runs if isinstance(run, Latency)]
    restore = [run for run in runs if isinstance(run, Restore)]
    sibling = [run for run in runs if isinstance(run, Sibling)]
    recovery = [run for run in runs if isinstance(run, Recovery)]
    memory = [run for run in runs if isinstance(run, Memory)]
    metrics = [run for run in runs if isinstance(run, MetricsCost)]
    takeovers = [run for run in runs if isinstance(run, Takeover)]
    return [
        *_throughput(throughput),
        *_two_workers(throughput),
        *_latency(latency, quiet_windows),
        *_restore(restore),
        *_sibling(sibling),
        *_recovery(recovery),
        *_memory(memory),
        *_metrics(metrics),
        *_takeovers(takeovers),
    ]


def _sibling(runs: Sequence[Sibling]) -> Iterator[Finding]:
    head = "beside a restore"
    rates = [run.during_per_s for run in runs], [run.alone_per_s for run in runs]
    yield from _Between(head, "records/s", "afterwards").higher("rate", *rates, _SIBLING_RATE_BAR)
    gaps = [run.longest_gap_s for run in runs]
    yield from _Between(head, "s", "the limit").lower("longest gap", gaps, [_SIBLING_GAP_S], 1.0)


def _recovery(runs: Sequence[Recovery]) -> Iterator[Finding]:
    between = _Between("kill -9 of a container", "s", "the limit")
    yield from between.lower("median", [run.median_s for run in runs], [_RECOVERY_MEDIAN_S], 1.0)
    yield from between.lower("worst", [max(run.silent_s) for run in runs], [_RECOVERY_WORST_S], 1.0)


def _takeovers(runs: Sequence[Takeover]) -> Iterator[Finding]:
    for killed in dict.fromkeys(run.killed for run in runs):
        silent_s = [run.silent_s for run in runs if run.killed == killed]
        between = _Between("kill -9 on a Spark cluster", "s", "the limit")
        yield from between.lower(killed, silent_s, [_TAKEOVER_S], 1.0)


def _memory(runs: Sequence[Memory]) -> Iterator[Finding]:
    grown = [run.late_bytes / run.early_bytes for run in runs]
    between = _Between("memory", "x", "the limit")
    yield from between.lower("at the end, of what it was after a fifth", grown, [_MEMORY_GROWTH], 1.0)


def _metrics(runs: Sequence[MetricsCost]) -> Iterator[Finding]:
    """The median of the pairs' ratios: from pair to pair the machine differs more than metrics cost."""
    pairs = {
        "rate": ([(run.with_per_s, run.without_per_s) for run in runs], _METRICS_BAR),
        "per CPU second": ([(run.with_per_cpu_s, run.without_per_cpu_s) for run in runs], None),
    }
    for name, (both, bar) in pairs.items():
        between = _Between("with metrics", "records/s", "without them")
        for found in between.higher(name, [one for one, _ in both], [other for _, other in both], bar):
            yield replace(found, ratio=statistics.median(one / other for one, other in both))


def _throughput(runs: Sequence[Throughput]) -> Iterator[Finding]:
    for guarantee in _guarantees(runs):
        alike = [run for run in runs if run.guarantee == guarantee and run.workers == 1]
        for (mine, peer), bar in _THROUGHPUT_BARS.items():
            ours, theirs = _of(alike, mine), _of(alike, peer)
            between = _Between(f"{guarantee}, {mine}", "records/s", peer)
            yield from between.higher("rate", _rates(ours), _rates(theirs), bar)
            halves = [run.second_half_per_s for run in ours], [run.second_half_per_s for run in theirs]
            yield from between.higher("second half", *halves, bar)
            yield from between.higher("per CPU second", _per_cpu(ours), _per_cpu(theirs), None)


def _two_workers(runs: Sequence[Throughput]) -> Iterator[Finding]:
    for guarantee in _guarantees(runs):
        ours = [run for run in runs if run.guarantee == guarantee and run.system == OURS]
        one, two = [run for run in ours if run.workers == 1], [run for run in ours if run.workers == 2]
        between = _Between(f"{guarantee}, two containers", "records/s", "one container")
        yield from between.higher("rate", _rates(two), _rates(one), _TWO_WORKERS_RATE_BAR)
        yield from between.higher("per CPU second", _per_cpu(two), _per_cpu(one), _TWO_WORKERS_CPU_BAR)


def _latency(runs: Sequence[Latency], wanted: int) -> Iterator[Finding]:
    for guarantee in _guarantees(runs):
        alike = [run for run in runs if run.guarantee == guarantee]
        ours, said = counting(_of(alike, OURS), wanted)
        for place in ("p50_ms", "p99_ms"):
            mine = [getattr(run, place) for run in ours]
            for peer in (KAFKA_STREAMS, QUIX):
                bar = 1.0 if peer == KAFKA_STREAMS and guarantee == EXACTLY_ONCE else None
                peers, said_of_peer = counting(_of(alike, peer), wanted)
                theirs = [getattr(run, place) for run in peers]
                note = "; ".join(filter(None, (said, said_of_peer)))
                between = _Between(f"latency, {guarantee}", "ms", peer, note)
                yield from between.lower(place, mine, theirs, bar)
            limit = [_LATENCY_LIMITS_MS[guarantee, place]]
            between = _Between(f"latency, {guarantee}", "ms", "the limit", said)
            yield from between.lower(place, mine, limit, 1.0)


def _restore(runs: Sequence[Restore]) -> Iterator[Finding]:
    for guarantee in _guarantees(runs):
        alike = [run for run in runs if run.guarantee == guarantee]
        ours = _of(alike, OURS)
        for peer, bar in _RESTORE_BARS.items():
            theirs = _of(alike, peer)
            times_s = [run.first_output_s for run in ours], [run.first_output_s for run in theirs]
            head = f"restore, {guarantee}"
            yield from _Between(head, "s", peer).lower("to the first output", *times_s, bar)
            yield from _Between(head, "keys/s", peer).higher("alone", _keys(ours), _keys(theirs), None)


@dataclass(frozen=True)
class _Between:
    """Makes findings of the medians of ours and of another; none where one of them did not run."""

    head: str
    unit: str
    against: str
    note: str = ""

    def higher(
        self, name: str, ours: Sequence[float], others: Sequence[float], bar: float | None
    ) -> Iterator[Finding]:
        """More is better."""
        if ours and others:
            mine, other = statistics.median(ours), statistics.median(others)
            ratio = mine / other
            name = f"{self.head}: {name}"
            yield Finding(name, mine, other, self.unit, self.against, ratio, bar, self.note)

    def lower(
        self, name: str, ours: Sequence[float], others: Sequence[float], bar: float | None
    ) -> Iterator[Finding]:
        """Less is better."""
        for found in self.higher(name, ours, others, bar):
            yield replace(found, ratio=found.other / found.ours)


def _guarantees(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.guarantee for run in runs))


def _of(runs: Sequence[_AnyRun], system: str) -> list[_AnyRun]:
    return [run for run in runs if run.system == system]


def _rates(runs: Sequence[Throughput]) -> list[float]:
    return [run.rate_per_s for run in runs]


def _per_cpu(runs: Sequence[Throughput]) -> list[float]:
    return [run.per_cpu_s for run in runs]


def _keys(runs: Sequence[Restore]) -> list[float]:
    return [run.keys_per_s for run in runs if run.keys_per_s]

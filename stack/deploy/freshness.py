"""Looks at all jobs and feeds in Kafka, and judges how fresh the feeds are that have an objective.

Kafka is asked rather than the containers: one that is dead says nothing, and that is when it matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from stack.connection import Stack
from stack.deploy.jobs import JobsFeed, jobs_feed
from stack.deploy.lag import InputLag, input_lags
from stack.deploy.metrics import record_json
from stack.engine.freshness import Arrivals, Objective, Sample, judge, within
from stack.errors import NotFound
from stack.kafka.reader import LogReader
from stack.model.feed import FeedSpec, FreshnessOf
from stack.model.freshness import Freshness, FreshnessState, alarms_name, freshness_from_json
from stack.model.place import Place

_READ_S = 5.0


@dataclass(frozen=True)
class Looked:
    """What one look found: each judged feed, and how far each job is behind in each input partition."""

    feeds: Mapping[str, Freshness] = field(default_factory=dict)
    lags: Mapping[str, tuple[InputLag, ...]] = field(default_factory=dict)


class _Record:
    """What the judge remembers of one feed."""

    def __init__(self, objective: Objective, alarmed: bool, now_ms: int) -> None:
        self.objective = objective
        # An alarm of an earlier judge is taken for true until the window says otherwise.
        stale = Sample(now_ms - objective.window_ms, objective.limit_ms + 1)
        self.samples = [stale] if alarmed else []
        self.state = FreshnessState.ALARM if alarmed else FreshnessState.FRESH
        self.since_ms = now_ms


class FreshnessJudge:
    """Judges again and again; one thread uses it. `alarmed` are the feeds whose alarm is on already."""

    def __init__(
        self,
        stack: Stack,
        alarmed: Collection[str] = (),
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._stack = stack
        self._jobs: JobsFeed = jobs_feed(stack)
        self._clock_ms = clock_ms
        self._alarmed = set(alarmed)
        self._records: dict[str, _Record] = {}
        self._arrivals: dict[str, Arrivals] = {}
        self._newest_ms: dict[str, int | None] = {}

    def look(self) -> Looked:
        """Ask Kafka once, and judge. A topic that somebody deleted is told of its own feed and job only."""
        specs, entries = self._stack.catalogue.feeds(), self._jobs.look()[0]
        lags, faults = {}, {}
        for name, entry in entries.items():
            try:
                lags[name] = input_lags(self._stack, entry.spec, specs)
            except NotFound as error:
                faults[name] = error.message
        judged = {name: spec for name, spec in specs.items() if spec.is_judged}
        self._records = {name: one for name, one in self._records.items() if name in judged}
        found = {}
        for name, spec in judged.items():
            why = ""
            staleness_ms: int | None = None
            try:
                if spec.freshness_of is FreshnessOf.RECORDS:
                    staleness_ms, why = self._since_last_record(spec), "it has no record yet"
                elif spec.by is None or spec.by not in lags:
                    why = faults.get(spec.by or "", f"job {spec.by!r} is not deployed")
                else:
                    staleness_ms = self._waiting_ms(spec.by, lags[spec.by])
            except NotFound as error:
                why = error.message
            found[name] = self._judge(spec, staleness_ms, why)
        return Looked(found, lags)

    def _waiting_ms(self, job: str, lags: Iterable[InputLag]) -> int:
        """How long the oldest record has waited for a job."""
        committed = {(one.topic, one.partition): one.committed or 0 for one in lags}
        arrivals = self._arrivals.setdefault(f"job/{job}", Arrivals())
        # What is not committed upstream waits for somebody else.
        arrivals.note(self._stack.admin.stable_ends(committed), self._clock_ms())
        return arrivals.waiting_ms(committed, self._clock_ms(), self._time_of)

    def _time_of(self, place: Place, offset: int) -> int:
        """The time of the first record at an offset or after it; now if there is none."""
        topic, number = place
        low = self._stack.admin.bounds(topic, [number])[number].low
        with LogReader(self._stack.access, topic) as reader:
            reader.assign({number: max(low, offset)})
            try:
                found = reader.read(1, timeout_s=_READ_S).timestamps_ms
            except NotFound:
                found = []
        return found[0] if found else self._clock_ms()

    def _since_last_record(self, spec: FeedSpec) -> int | None:
        topic = self._stack.topic_of(spec.name, spec.version)
        places = [(topic, number) for number in range(spec.partitions)]
        arrivals = self._arrivals.setdefault(f"feed/{spec.name}", Arrivals())
        arrivals.note(self._stack.admin.stable_ends(places), self._clock_ms())
        last_ms = arrivals.last_ms()
        if last_ms is None:
            if spec.name not in self._newest_ms:
                self._newest_ms[spec.name] = self._stack.admin.newest_ms(places)
            last_ms = self._newest_ms[spec.name]
        return None if last_ms is None else max(0, self._clock_ms() - last_ms)

    def _judge(self, spec: FeedSpec, staleness_ms: int | None, why: str) -> Freshness:
        now_ms = self._clock_ms()
        objective = Objective(spec.freshness_ms or 0, spec.freshness_window_ms)
        record = self._records.get(spec.name)
        if record is None or record.objective != objective:
            was_alarmed = spec.name in self._alarmed if record is None else False
            record = self._records[spec.name] = _Record(objective, was_alarmed, now_ms)
            self._alarmed.discard(spec.name)
        # What cannot be told counts as fresh: whoever removes a job does not want to hear of it for ever.
        record.samples.append(Sample(now_ms, staleness_ms or 0))
        record.samples = within(record.samples, objective, now_ms)
        verdict = judge(objective, record.samples, record.state is FreshnessState.ALARM, now_ms)
        state = verdict.state
        if staleness_ms is None and state is not FreshnessState.ALARM:
            state = FreshnessState.UNKNOWN
        if state is not record.state:
            record.state, record.since_ms = state, now_ms
        return Freshness(
            spec.name,
            now_ms,
            state,
            objective.limit_ms,
            objective.window_ms,
            staleness_ms,
            round(verdict.share, 3),
            record.since_ms,
            why if staleness_ms is None else "",
        )


def last_alarms(stack: Stack) -> dict[str, Freshness]:
    """What the alarms feed said last of each feed."""
    topic = alarms_name(stack.settings.name)
    found: dict[str, Freshness] = {}
    if topic not in stack.admin.describe([topic]):
        return found
    bounds = stack.admin.bounds(topic, [0])[0]
    with LogReader(stack.access, topic) as reader:
        reader.assign({0: bounds.low}, {0: bounds.high})
        deadline = time.monotonic() + _READ_S
        while not reader.done and time.monotonic() < deadline:
            for value in reader.read(timeout_s=0.25).values:
                one = freshness_from_json(record_json(value))
                if one is not None:
                    found[one.feed] = one
    return found

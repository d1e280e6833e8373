"""L1: how long a record takes from just before it is sent until a careful reader sees its answer.

Records come at a steady rate from a process of their own. The k-th record of a user is answered by the first
output with a count of k or more. All systems are started and warmed up; then they have windows in turns, one
at a time, until each has had enough while the machine was quiet.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from ops.bench.figures import rounded
from ops.bench.tasks_load import Encoded, encode_views, random_users
from ops.bench.tasks_outputs import committed_consumer, count_of, output_schema
from ops.bench.tasks_probe import Disturbance, Probe, Watch
from ops.bench.tasks_stage import PARTITIONS, Stage
from ops.bench.tasks_systems import EXACTLY_ONCE, Running, System, Task, task_name
from ops.bench.tasks_turns import next_turns

COMMIT_MS = {EXACTLY_ONCE: 50}
"""Commits under exactly-once; answers are not seen before. Else as in throughput."""

_OTHER_COMMIT_MS = 100
_KEYS = 100_000
_WARM_LIMIT_S = 180.0
_LAST_ANSWER_S = 10.0

Sent = list[tuple[str, float]]
Answers = Mapping[str, Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class Latency:
    """One window of one system, in milliseconds."""

    system: str
    guarantee: str
    sent: int
    answered: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    disturbance: Disturbance

    @property
    def other_load(self) -> float:
        return self.disturbance.other_load

    @property
    def quiet(self) -> bool:
        return self.disturbance.quiet

    @property
    def right(self) -> bool:
        return self.answered == self.sent

    def as_json(self) -> dict[str, Any]:
        figures = rounded(self, 2)
        disturbance = {**rounded(self.disturbance, 3), "held_up": rounded(self.disturbance.held_up, 1)}
        del figures["disturbance"]
        return {"figure": "latency", **figures, **disturbance, "quiet": self.quiet, "right": self.right}


@dataclass(frozen=True)
class Load:
    """Records per second, how long a window is, and how long each system is warmed up before."""

    per_s: int
    window_s: int
    warm_s: int


def latencies_ms(sent: Sent, answers: Answers) -> list[float]:
    """The time of each answered record, in order of length."""
    seen: dict[str, int] = {}
    found = []
    for user, sent_s in sent:
        seen[user] = number = seen.get(user, 0) + 1
        times_s = [at_s for count, at_s in answers.get(user, ()) if count >= number]
        if times_s:
            found.append((min(times_s) - sent_s) * 1000)
    return sorted(found)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of all values does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measure_latency(
    stage: Stage, systems: Sequence[System], guarantee: str, load: Load, wanted: int
) -> Iterator[Latency]:
    """Start all systems and warm them up; then windows in turns, until each has `wanted` quiet ones or its
    bound is reached.
    """
    with contextlib.ExitStack() as stack:
        started = {system.name: stack.enter_context(_started(stage, system, guarantee)) for system in systems}
        for name, subject in started.items():
            stage.say(f"warming up {name}, {guarantee}")
            subject.warm_up(load)
        probe = stack.enter_context(Probe())
        taken: list[Latency] = []
        for number in itertools.count():
            turns = next_turns(list(started), taken, number, wanted)
            if not turns:
                break
            for name in turns:
                stage.say(f"round {number + 1}: latency of {name}, {guarantee}")
                window = started[name].window(load, number, probe)
                taken.append(window)
                yield window


@contextlib.contextmanager
def _started(stage: Stage, system: System, guarantee: str) -> Iterator[_Subject]:
    """A system at work on an empty feed."""
    name = task_name("l1", system)
    source = f"{name}-in"
    stage.add_source(source)
    task = Task(name, source, guarantee, commit_ms=COMMIT_MS.get(guarantee, _OTHER_COMMIT_MS), latency=True)
    output = system.make_output(task)
    consumer = committed_consumer(stage)
    consumer.assign([TopicPartition(output, number, 0) for number in range(PARTITIONS)])
    running = system.start(task)
    try:
        yield _Subject(stage, system.name, task, consumer, running)
    finally:
        running.stop()
        consumer.close()
        system.remove(task)
        stage.remove_feed(source)


@dataclass(frozen=True)
class _Subject:
    """A system that was started, and who reads its answers."""

    stage: Stage
    system: str
    task: Task
    consumer: Consumer
    running: Running

    @property
    def _address(self) -> tuple[str, str]:
        return self.stage.stack.access.bootstrap, self.stage.stack.topic_of(self.task.source)

    def warm_up(self, load: Load) -> None:
        """Send records until answers flow, and then some more for the compilers of the peers."""
        users = [f"warm-{number % 100}" for number in range(load.warm_s * load.per_s)]
        views = encode_views(self.stage.stack, self.task.source, users)
        first = Encoded(views.keys[:100], views.payloads[:100])
        deadline = time.monotonic() + load.warm_s + _WARM_LIMIT_S
        sent = answered = 0
        while answered == 0:
            if time.monotonic() > deadline or not self.running.is_alive():
                raise TimeoutError(f"{self.task.name} does not answer, or has ended")
            send_steadily(*self._address, first, load.per_s)
            sent += len(first)
            answered += _drain(self.consumer, 0.5)
        send_steadily(*self._address, views, load.per_s)
        sent += len(views)
        while answered < sent and time.monotonic() < deadline:
            answered += _drain(self.consumer, 0.5)

    def window(self, load: Load, number: int, probe: Probe) -> Latency:
        """One window of steady load."""
        users = [f"w{number}-{user}" for user in random_users(load.per_s * load.window_s, _KEYS, seed=number)]
        views = encode_views(self.stage.stack, self.task.source, users)
        self.stage.settle()
        watch = Watch(self.stage, probe)
        sent, received = self._exchange(views, load.per_s)
        disturbance = watch.end()
        schema = output_schema(self.stage)
        answers: dict[str, list[tuple[int, float]]] = {}
        for message, at_s in received:
            user, count = count_of(message, schema)
            answers.setdefault(user, []).append((count, at_s))
        ordered = latencies_ms(sent, answers)
        if not ordered:
            raise TimeoutError(f"{self.task.name} has answered nothing")
        return Latency(
            system=self.system,
            guarantee=self.task.guarantee,
            sent=len(sent),
            answered=len(ordered),
            p50_ms=percentile(ordered, 0.5),
            p95_ms=percentile(ordered, 0.95),
            p99_ms=percentile(ordered, 0.99),
            max_ms=ordered[-1],
            disturbance=disturbance,
        )

    def _exchange(self, views: Encoded, per_s: int) -> tuple[Sent, list[tuple[Message, float]]]:
        """Have records sent by another process while this one reads the answers."""
        spawning = multiprocessing.get_context("spawn")
        mine, theirs = spawning.Pipe(duplex=False)
        parts = theirs, *self._address, views, per_s
        # A daemon: a run that is broken off does not wait until it has given up sending.
        sender = spawning.Process(target=_send_and_report, args=parts, daemon=True)
        sender.start()
        received: list[tuple[Message, float]] = []
        last_s = time.time() + len(views) / per_s + _LAST_ANSWER_S
        while len(received) < len(views) and time.time() - last_s < _LAST_ANSWER_S:
            # One at a time: `consume` would wait for more before it hands out what is there.
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                last_s = time.time()
                received.append((message, last_s))
        sent: Sent = mine.recv()
        sender.join()
        return sent, received


def _drain(consumer: Consumer, wait_s: float) -> int:
    return sum(message.error() is None for message in consumer.consume(1000, wait_s))


def _send_and_report(pipe: Any, bootstrap: str, topic: str, views: Encoded, per_s: int) -> None:
    times_s = send_steadily(bootstrap, topic, views, per_s)
    pipe.send([(key.decode(), at_s) for key, at_s in zip(views.keys, times_s, strict=True)])


def send_steadily(bootstrap: str, topic: str, views: Encoded, per_s: int) -> list[float]:
    """Send records at a steady rate; the moment just before each was handed to the client."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "partitioner": "murmur2_random", "acks": "all"}
    )
    producer.list_topics(topic, timeout=10)
    begun_s = time.time() + 0.2
    times_s = []
    for number, (key, payload) in enumerate(zip(views.keys, views.payloads, strict=True)):
        early_s = begun_s + number / per_s - time.time()
        if early_s > 0:
            time.sleep(early_s)
        times_s.append(time.time())
        producer.produce(topic, payload, key)
        producer.poll(0)
    producer.flush()
    return times_s

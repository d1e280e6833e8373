"""The task engine against Kafka Streams and Quix Streams: the same job, the same feed, in the same run.

Every system is a job in processes of its own, measured from outside. A round runs each of them once, in
turns, and every other round in the opposite order, so that a machine that slows down favours none. The median
of the rounds counts; for latency, of those in which the machine was quiet.
Run `python -m ops.bench.tasks --help`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ops.bench.tasks_findings import KAFKA_STREAMS, OURS, OURS_BY_BATCH, QUIX, Finding, Run, findings
from ops.bench.tasks_latency import Load, measure_latency
from ops.bench.tasks_metrics import measure_metrics
from ops.bench.tasks_ours import BY_BATCH, BY_RECORD, Ours
from ops.bench.tasks_recovery import measure_memory, measure_recovery
from ops.bench.tasks_restore import measure_restore
from ops.bench.tasks_sibling import measure_sibling
from ops.bench.tasks_stage import NOISY, Stage, open_stage
from ops.bench.tasks_systems import AT_LEAST_ONCE, EXACTLY_ONCE, System, kafka_streams, quix
from ops.bench.tasks_takeover import measure_takeovers
from ops.bench.tasks_throughput import measure_throughput

SYSTEMS: dict[str, Callable[[Stage], System]] = {
    OURS: lambda stage: Ours(OURS, stage, BY_RECORD),
    OURS_BY_BATCH: lambda stage: Ours(OURS_BY_BATCH, stage, BY_BATCH),
    KAFKA_STREAMS: kafka_streams,
    QUIX: quix,
}
WORKS = ("throughput", "latency", "restore", "sibling", "recovery", "memory", "metrics", "takeover")
GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)
SLOW = {QUIX}
# The broker's compilers work for a minute and a half, and those of the peers for half a minute.
_WARM_BROKER_S, _WARM_SYSTEM_S = 90, 30


@dataclass(frozen=True)
class Plan:
    """What is to be measured."""

    works: Sequence[str] = WORKS
    systems: Sequence[str] = tuple(SYSTEMS)
    guarantees: Sequence[str] = GUARANTEES
    rounds: int = 3
    records: int = 5_000_000
    slow_records: int = 300_000
    keys: int = 100_000
    per_s: int = 1_000
    window_s: int = 10
    restored_keys: int = 1_000_000
    sibling_records: int = 1_500_000
    kills: int = 10
    two_workers: bool = True


def measure_tasks(
    plan: Plan, say: Callable[[str], None], report: Callable[[Run], None]
) -> tuple[list[Run], list[Finding]]:
    """Carry out the plan on a temporary stack; `report` hears of every run as it ends."""
    runs: list[Run] = []
    for run in _all_runs(plan, say):
        report(run)
        runs.append(run)
    noisy = sum(run.other_load > NOISY for run in runs)
    if noisy:
        say(f"others used more than {NOISY:.0%} of this machine in {noisy} of {len(runs)} runs")
    return runs, findings(runs, plan.rounds)


def _all_runs(plan: Plan, say: Callable[[str], None]) -> Iterator[Run]:
    if set(plan.works) - {"takeover"}:
        with open_stage(say) as stage:
            yield from _runs(plan, stage, [SYSTEMS[name](stage) for name in plan.systems])
    if "takeover" in plan.works and OURS in plan.systems:
        yield from measure_takeovers(say, OURS, keys=plan.keys)


def _runs(plan: Plan, stage: Stage, systems: Sequence[System]) -> Iterator[Run]:
    if "throughput" in plan.works:
        yield from _throughput_runs(plan, stage, systems)
    # Batches are for throughput alone.
    systems = [system for system in systems if system.name != OURS_BY_BATCH]
    if "latency" in plan.works and systems:
        yield from _latency_runs(plan, stage, systems)
    for system in systems if "restore" in plan.works else ():
        stage.say(f"restore of {system.name}")
        yield from measure_restore(
            stage, system, plan.guarantees[0], keys=plan.restored_keys, rounds=plan.rounds
        )
    for system in systems:
        if isinstance(system, Ours):
            yield from _own_runs(plan, stage, system)


def _own_runs(plan: Plan, stage: Stage, system: Ours) -> Iterator[Run]:
    """What is measured of ours alone."""
    if "sibling" in plan.works:
        for _ in range(plan.rounds):
            stage.say("a task beside one that restores")
            yield measure_sibling(stage, system, keys=plan.restored_keys, records=plan.sibling_records)
    if "recovery" in plan.works:
        stage.say(f"kill -9 of containers, {plan.kills} times")
        yield measure_recovery(stage, system, keys=plan.keys, kills=plan.kills)
    if "memory" in plan.works:
        stage.say("memory of a container")
        yield measure_memory(stage, system, records=plan.records, keys=plan.keys)
    if "metrics" in plan.works:
        bare = Ours(f"{OURS}-unmeasured", stage, BY_RECORD, metrics=False)
        size = {"records": plan.records, "keys": plan.keys, "rounds": plan.rounds}
        yield from measure_metrics(stage, system, bare, plan.guarantees[0], **size)


def _latency_runs(plan: Plan, stage: Stage, systems: Sequence[System]) -> Iterator[Run]:
    # What warms a system up warms the broker, too: whoever came first would pay for its compilers.
    warm_s = max(_WARM_SYSTEM_S, _WARM_BROKER_S // len(systems))
    for guarantee in plan.guarantees:
        load = Load(plan.per_s, plan.window_s, warm_s)
        yield from measure_latency(stage, systems, guarantee, load, plan.rounds)
        warm_s = _WARM_SYSTEM_S


def _throughput_runs(plan: Plan, stage: Stage, systems: Sequence[System]) -> Iterator[Run]:
    turns = [(system, guarantee, 1) for guarantee in plan.guarantees for system in systems]
    if plan.two_workers:
        turns += [(system, plan.guarantees[0], 2) for system in systems if system.name == OURS]
    for number in range(plan.rounds):
        for system, guarantee, workers in turns if number % 2 == 0 else reversed(turns):
            stage.say(f"round {number + 1}: throughput of {system.name}, {guarantee}, workers: {workers}")
            records = plan.slow_records if system.name in SLOW else plan.records
            yield measure_throughput(
                stage, system, guarantee, records=records, keys=plan.keys, workers=workers
            )


def main(words: Sequence[str]) -> None:
    """One JSON line for each run, then one for each finding."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.tasks", description=__doc__)
    usual = Plan()
    parser.add_argument("--works", nargs="+", choices=WORKS, default=usual.works)
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=usual.systems)
    parser.add_argument("--guarantees", nargs="+", choices=GUARANTEES, default=usual.guarantees)
    for name in ("rounds", "records", "slow_records", "keys", "per_s", "window_s", "restored_keys"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=int, default=getattr(usual, name))
    given = parser.parse_args(words)

    def report(run: Run) -> None:
        print(json.dumps(run.as_json()), flush=True)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    runs, found = measure_tasks(Plan(**vars(given)), note, report)
    for finding in found:
        print(json.dumps(finding.as_json()), flush=True)
    if not all(run.right for run in runs):
        sys.exit("some runs lost or doubled records: their figures mean nothing")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The ledger on real Kafka: writers take turns by fencing, readers see everything that was acknowledged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stack import Stack
from stack.feeds.avro.schema import parse_avro
from stack.feeds.registry.registry import SchemaRegistry
from stack.kafka.ledger import KafkaLedger
from stack.settings import Settings
from tests.clusters import wait_for

pytestmark = pytest.mark.cluster


def ledger_of(stack: Stack) -> KafkaLedger:
    return KafkaLedger(stack.access, f"_{stack.settings.name}.numbers")


def test_what_one_wrote_another_sees(stack: Stack) -> None:
    first, second = ledger_of(stack), ledger_of(stack)
    assert second.entries() == {}
    first.update(lambda _: {"a": "1", "b": "2"})
    assert second.entries() == {"a": "1", "b": "2"}
    second.update(lambda _: {"a": None})
    assert first.entries() == {"b": "2"}
    same = first.entries()
    assert first.entries() is same
    first.close()
    second.close()


def test_a_decision_to_change_nothing_writes_nothing(stack: Stack) -> None:
    ledger = ledger_of(stack)
    ledger.update(lambda _: {})
    assert stack.admin.ends(f"_{stack.settings.name}.numbers", [0]) == {0: 0}
    ledger.close()


def test_writers_of_several_threads_and_ledgers_lose_no_turn(stack: Stack) -> None:
    """Every update adds one to a counter; whoever decided on an old value must decide again."""
    ledgers = [ledger_of(stack) for _ in range(3)]
    updates = 5

    def count(ledger: KafkaLedger) -> None:
        for _ in range(updates):
            ledger.update(lambda entries: {"n": str(int(entries.get("n", "0")) + 1)})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, ledgers))
    assert ledgers[0].entries() == {"n": str(3 * updates)}
    for ledger in ledgers:
        ledger.close()


def test_registries_that_register_at_once_give_every_schema_its_own_id(stack: Stack) -> None:
    registries = [SchemaRegistry(KafkaLedger(stack.access, f"_{stack.settings.name}.ids")) for _ in range(3)]

    def register(number: int) -> tuple[int, str]:
        schema = parse_avro(json.dumps({"type": "record", "name": f"R{number % 4}", "fields": []}))
        return registries[number % 3].register(f"s{number}", schema).id, schema.text

    with ThreadPoolExecutor(3) as pool:
        given = list(pool.map(register, range(12)))
    assert len(set(given)) == 4
    assert {schema_id for schema_id, _ in given} == {1, 2, 3, 4}
    for schema_id, text in given:
        assert registries[0].schema_by_id(schema_id).text == text


KILLED_WRITER = """
import sys
from pathlib import Path
from stack import Stack
from stack.kafka.writer import LogWriter
with Stack.connect(Path(sys.argv[1])) as stack:
    topic = f"_{stack.settings.name}.numbers"
    log = LogWriter(stack.access, transactional_id=f"feedstack.ledger.{topic}", timeout_s=10)
    log.init_transactions()
    log.begin()
    log.write(topic, [{"key": b"half", "value": b"done"}])
    log.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_a_writer_that_was_killed_in_the_middle_leaves_nothing_behind(
    stack: Stack, settings: Settings
) -> None:
    ledger = ledger_of(stack)
    ledger.update(lambda _: {"a": "1"})
    command = [sys.executable, "-c", KILLED_WRITER, str(settings.file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    begun = time.monotonic()
    assert ledger.update(lambda entries: {"b": entries["a"]}) == {"a": "1", "b": "1"}
    assert time.monotonic() - begun < 15
    ledger.close()


def test_a_reader_waits_for_the_transaction_under_way(stack: Stack) -> None:
    ledger = ledger_of(stack)
    ledger.update(lambda _: {"a": "1"})
    other = ledger_of(stack)
    inside, go_on = threading.Event(), threading.Event()

    def slowly(entries: object) -> dict[str, str | None]:
        inside.set()
        go_on.wait(10)
        return {"a": "2"}

    writer = threading.Thread(target=lambda: other.update(slowly))
    writer.start()
    wait_for(inside.is_set, "the writer")
    assert ledger.entries() == {"a": "1"}
    go_on.set()
    writer.join()
    assert ledger.entries() == {"a": "2"}
    ledger.close()
    other.close()

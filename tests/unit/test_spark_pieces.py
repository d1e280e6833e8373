"""What needs no Spark: its settings, what its errors mean, processes of this machine, the forking daemon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stack.model.fleet import (
    JobState,
    JobStatus,
    RunnerPlace,
    runner_from_json,
    runner_to_json,
    status_from_json,
    status_to_json,
)
from stack.model.plan import Reason
from stack.runtime.host import (
    IDENTITY_VARIABLE,
    is_dead,
    is_former_self,
    kill_container,
    this_place,
)
from stack.runtime.spark_archive import archive_file, archive_words, draft_of, making, without_archive
from stack.runtime.spark_conf import SparkPlace, spark_conf
from stack.runtime.spark_endings import ending_of
from stack.runtime.spark_jvm import jvm_command, spark_home
from tests.clusters import wait_for

PLACE = SparkPlace(Path("/scratch"), "java", Path("/log4j"), ("-Dmark=1",), ("-Dx=a b",))
WORKER_FAULT = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 189, in _run_module_as_main
  ModuleNotFoundError: No module named 'fastavro'
PYTHONPATH was:
  /somewhere/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from the daemon's stdout.
"""


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("Job 7 cancelled part of cancelled job group x", Reason.LOST, "it was cancelled"),
        ("[SPARK_JOB_CANCELLED] by someone", Reason.LOST, "it was cancelled"),
        ("x\nPython worker exited unexpectedly (crashed). Consider", Reason.LOST, "its process was killed"),
        ("ExecutorLostFailure (executor 1 exited)", Reason.LOST, "its executor was lost"),
        ("\n  something else\nmore", Reason.LOST, "something else"),
        ("", Reason.LOST, "Spark ended it without a word"),
        (
            WORKER_FAULT,
            Reason.FAILED,
            "Spark cannot run our code on its executors: ModuleNotFoundError: No module named 'fastavro'",
        ),
        (
            "PythonException:\nTraceback (most recent call last):\n  x\nValueError: bad pickle\n\n\tat java",
            Reason.FAILED,
            "Spark cannot run our code on its executors: ValueError: bad pickle",
        ),
    ],
)
def test_what_spark_says_becomes_an_ending(text: str, reason: Reason, message: str) -> None:
    ending = ending_of(text)
    assert (ending.reason, ending.message, ending.retry) == (reason, message, True)


def test_spark_never_retries_by_itself_and_stays_on_the_loopback_where_it_can() -> None:
    conf = spark_conf("local[64]", "shop", "id-1", PLACE)
    assert conf["spark.task.maxFailures"] == "1"
    assert conf["spark.python.worker.reuse"] == "false"
    assert conf["spark.speculation"] == conf["spark.dynamicAllocation.enabled"] == "false"
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert conf[f"spark.executorEnv.{IDENTITY_VARIABLE}"] == "id-1"
    here = spark_conf("spark://127.0.0.1:7077", "shop", "id-1", PLACE)
    assert here["spark.driver.bindAddress"] == "127.0.0.1"
    assert here["spark.executor.extraJavaOptions"].endswith('"-Dx=a b"')
    far = spark_conf("spark://big:7077", "shop", "id-1", PLACE)
    assert "spark.driver.host" not in far
    assert far["spark.executor.extraJavaOptions"] == here["spark.executor.extraJavaOptions"]
    given = spark_conf("yarn", "shop", "id-1", PLACE, {"spark.executor.memory": "2g", "spark.x": "y"})
    assert (given["spark.executor.memory"], given["spark.x"]) == ("2g", "y")
    assert PLACE.words == ["-Dmark=1", "-Djava.io.tmpdir=/scratch", "-Dlog4j2.configurationFile=/log4j"]


def test_the_command_of_a_jvm_has_sparks_own_class_path() -> None:
    command = jvm_command("java", "64m", ["-Dx=1"], ["Main", "word"])
    assert command[:2] == ["java", "-cp"]
    assert command[2].endswith(f"{spark_home()}/jars/*")
    assert command[3] == "-Xmx64m"
    assert command[-2:] == ["Main", "word"]
    assert "-Dx=1" in command


def test_an_archive_belongs_to_one_java_and_is_used_when_it_is_there(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("one")
    first = archive_file(tmp_path, str(java))
    assert archive_file(tmp_path, str(java)) == first
    assert archive_words(first) == ()
    first.write_text("")
    assert archive_words(first)[0] == f"-XX:SharedArchiveFile={first}"
    assert without_archive(["-Xmx1g", *archive_words(first), "Main"]) == ["-Xmx1g", "Main"]
    os.utime(java, (1, 1))
    assert archive_file(tmp_path, str(java)) != first


def test_an_archive_is_made_by_one_at_a_time_and_never_kept_by_halves(tmp_path: Path) -> None:
    file = tmp_path / "x.jsa"
    draft_of(file).write_text("half")
    with making(file) as folder:
        assert folder is not None
        with making(file) as other:
            assert other is None
        assert not draft_of(file).exists()
    assert not file.exists()
    assert not folder.exists()
    with making(file) as folder:
        draft_of(file).write_text("whole")
    assert file.read_text() == "whole"
    with making(file, wait=True) as folder:
        assert folder is None


def test_a_runner_of_this_machine_is_known_to_be_dead_or_alive() -> None:
    place = this_place("me", "local[2]")
    assert not is_dead(place)
    assert is_dead(replace(place, started=place.started - 100))
    assert not is_dead(replace(place, host="elsewhere", pid=1 << 22))
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(process.pid).create_time()
    process.wait()
    assert is_dead(replace(place, pid=process.pid, started=started))
    assert runner_from_json(runner_to_json(place)) == place
    assert isinstance(place, RunnerPlace)


def test_a_runner_knows_its_former_self() -> None:
    own = this_place("12-ab.2")
    assert is_former_self(replace(own, id="12-ab.1"), own)
    assert not is_former_self(own, own)
    assert not is_former_self(replace(own, id="12-cd.1"), own)
    assert not is_former_self(replace(own, id="r1"), replace(own, id="r2"))


def test_only_a_container_of_ours_is_killed() -> None:
    code = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, IDENTITY_VARIABLE: "ours"})
    try:
        wait_for(lambda: psutil.Process(process.pid).environ(), "its environment")
        assert not kill_container(socket.gethostname(), process.pid, "theirs")
        assert not kill_container("elsewhere", process.pid, "ours")
        assert process.poll() is None
        assert kill_container(socket.gethostname(), process.pid, "ours")
        assert process.wait(10) == -9
        assert not kill_container(socket.gethostname(), process.pid, "ours")
    finally:
        process.kill()


def test_a_status_survives_json() -> None:
    status = JobStatus(JobState.WAITING, "waiting for 2 slots", "hint", 3, 4, 2, "v", "r", 5, "p", "d", 6)
    assert status_from_json(status_to_json(status)) == status


def test_the_daemon_has_one_thread_when_it_forks_and_loads_pandas_later() -> None:
    code = """
import sys, time, psutil
from stack.runtime.daemon import preload, preload_late

def told():
    return psutil.Process().num_threads(), "pandas" in sys.modules

preload()
early = told()
preload_late(after_s=1)
deadline = time.monotonic() + 60
while "pandas" not in sys.modules and time.monotonic() < deadline:
    time.sleep(0.01)
print(*early, *told())
"""
    conf = spark_conf("local[2]", "x", "id", PLACE)
    environment = {
        key.removeprefix("spark.executorEnv."): value
        for key, value in conf.items()
        if key.startswith("spark.executorEnv.")
    }
    command = [sys.executable, "-c", code]
    answer = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "1 False 1 True\n"

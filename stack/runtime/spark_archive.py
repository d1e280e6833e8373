"""An archive of the classes that Spark loads when it starts: with it a JVM is there in half the time.

Made once per Java and pyspark, beside whatever else runs, by `python -m stack.runtime.spark_archive`. A JVM
for which it does not fit does without.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from stack.errors import FeedstackError
from stack.runtime.spark_conf import SparkPlace, spark_conf
from stack.runtime.spark_jvm import end_jvm, spark_home, start_gateway

_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


def archive_file(folder: Path, java: str) -> Path:
    """Where the archive for this Java and this pyspark is, or would be."""
    command = Path(shutil.which(java) or java).resolve()
    changed = command.stat().st_mtime_ns if command.exists() else 0
    known = hashlib.sha256(f"{command} {changed} {spark_home()}".encode()).hexdigest()
    return folder / f"spark-{version('pyspark')}-{known[:12]}.jsa"


def archive_words(file: Path) -> tuple[str, ...]:
    """The words by which a JVM uses the archive, if there is one."""
    return (f"-XX:SharedArchiveFile={file}", *_QUIET) if file.exists() else ()


def make_in_background(file: Path, java: str, mark: str) -> None:
    """Make the archive if there is none, without standing in anybody's way.

    The process outlives its parent; `mark` is a word on its command line by which it can be found.
    """
    if file.exists():
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.Popen(
            [sys.executable, "-m", "stack.runtime.spark_archive", str(file), java, mark],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def make(file: Path, java: str) -> None:
    """Start Spark, let it do what it does for a container, and write down what it loaded."""
    with file.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            return
        with tempfile.TemporaryDirectory(prefix="feedstack-archive-") as folder:
            draft = file.with_suffix(".draft")
            place = SparkPlace(Path(folder), java)
            conf = spark_conf("local[2]", "archive", "archive", place)
            words = [f"-XX:ArchiveClassesAtExit={draft}", f"-Djava.io.tmpdir={folder}", *_QUIET]
            _run_once(java, words, conf)
            draft.replace(file)


def _run_once(java: str, words: list[str], conf: dict[str, str]) -> None:
    from pyspark import SparkConf, SparkContext

    gateway, jvm = start_gateway(java, "512m", words, conf, subprocess.DEVNULL)
    try:
        settings = SparkConf(loadDefaults=False, _jvm=gateway.jvm).setAll(list(conf.items()))
        with SparkContext(conf=settings, gateway=gateway) as context:
            context.setJobGroup("archive", "archive", interruptOnCancel=True)
            context.parallelize([1], 1).mapPartitions(list).collect()
    finally:
        end_jvm(jvm, limit_s=120.0)


if __name__ == "__main__":
    os.nice(19)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with contextlib.suppress(FeedstackError, OSError):
        make(Path(sys.argv[1]), sys.argv[2])

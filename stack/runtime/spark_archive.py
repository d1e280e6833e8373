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
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from stack.errors import FeedstackError
from stack.runtime.spark_conf import SparkPlace, spark_conf
from stack.runtime.spark_jvm import end_jvm, spark_home, start_gateway

_ARCHIVE = "-XX:SharedArchiveFile="
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


def archive_file(folder: Path, java: str) -> Path:
    """Where the archive for this Java and this pyspark is, or would be."""
    return archive_of(folder, f"spark-{version('pyspark')}", java, spark_home())


def archive_of(folder: Path, name: str, java: str, classes: Path) -> Path:
    """Where an archive for this Java and these classes is, or would be."""
    command = Path(shutil.which(java) or java).resolve()
    changed = command.stat().st_mtime_ns if command.exists() else 0
    known = hashlib.sha256(f"{command} {changed} {classes}".encode()).hexdigest()
    return folder / f"{name}-{known[:12]}.jsa"


def archive_words(file: Path) -> tuple[str, ...]:
    """The words by which a JVM uses the archive, if there is one."""
    return (f"{_ARCHIVE}{file}", *_QUIET) if file.exists() else ()


def without_archive(words: Sequence[str]) -> list[str]:
    """A JVM's command but for these words: what it runs does not hang on them."""
    return [one for one in words if one not in _QUIET and not one.startswith(_ARCHIVE)]


def recording_words(file: Path) -> tuple[str, ...]:
    """The words by which a JVM writes down at its end what it has loaded."""
    return (f"-XX:ArchiveClassesAtExit={file}", *_QUIET)


def make_in_background(file: Path, java: str, mark: str, module: str = __name__) -> None:
    """Make the archive if there is none, without standing in anybody's way.

    The process, which runs `module`, outlives its parent; `mark` is a word on its command line by which it
    can be found.
    """
    if file.exists():
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.Popen(
            [sys.executable, "-m", module, str(file), java, mark],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@contextlib.contextmanager
def making(file: Path, wait: bool = False) -> Iterator[Path | None]:
    """A folder to work in while the draft is written, kept at the end; None where nothing is left to do.

    Whoever finds another at it leaves it to that one, unless it is to `wait` for the end.
    """
    with file.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        if file.exists():
            yield None
            return
        draft_of(file).unlink(missing_ok=True)  # half of one, if its maker was killed
        with tempfile.TemporaryDirectory(prefix="feedstack-archive-") as folder:
            yield Path(folder)
            with contextlib.suppress(FileNotFoundError):
                draft_of(file).replace(file)


def draft_of(file: Path) -> Path:
    """Where an archive is written before it is whole."""
    return file.with_suffix(".draft")


def make(file: Path, java: str) -> None:
    """Start Spark, let it do what it does for a container, and write down what it loaded."""
    with making(file) as folder:
        if folder is not None:
            conf = spark_conf("local[2]", "archive", "archive", SparkPlace(folder, java))
            words = [*recording_words(draft_of(file)), f"-Djava.io.tmpdir={folder}"]
            _run_once(java, words, conf)


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

"""Prepares the peers: jars and classes of Kafka Streams, an environment for Quix, in the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.cluster.files import locked
from ops.cluster.jars import KAFKA_VERSION, JarSet, cache_folder, cached_jars
from ops.cluster.java import Java, find_java
from stack.errors import ClusterFault

Say = Callable[[str], None]

QUIX_VERSION = "3.28.1"
_KAFKA_STREAMS = JarSet(
    "kafka-streams",
    "Kafka Streams",
    "90 MB",
    (
        ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
        ("org.apache.avro", "avro", "1.12.0"),
        ("org.slf4j", "slf4j-nop", "2.0.13"),
    ),
)
_HEAP = "2g"
_JAVA_SOURCE = Path(__file__).with_name("KStreamsJob.java")
_QUIX_SOURCE = Path(__file__).with_name("quix_job.py")
_LIMIT_S = 600


def kafka_streams_command(say: Say, configured_java: str | None = None) -> list[str]:
    """The command that runs the counting job on Kafka Streams; fetched and compiled if need be."""
    java = find_java(configured_java)
    jars = cached_jars(_KAFKA_STREAMS, java, say)
    classes = _compiled(java, jars, say)
    return [java.command, f"-Xmx{_HEAP}", "-cp", f"{classes}:{jars}/*", _JAVA_SOURCE.stem]


def _compiled(java: Java, jars: Path, say: Say) -> Path:
    """The classes of our source, compiled once for each text of it."""
    digest = hashlib.sha256(_JAVA_SOURCE.read_bytes()).hexdigest()[:16]
    folder = cache_folder() / f"{_KAFKA_STREAMS.folder}-job-{digest}-java{java.version}"
    with locked(folder.with_name(folder.name + ".lock")):
        if not folder.exists():
            say("compiling the Kafka Streams job")
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="compile-") as temporary:
                draft = Path(temporary) / "classes"
                compile_java = [_javac(java), "-cp", f"{jars}/*", "-d", str(draft), str(_JAVA_SOURCE)]
                _run(compile_java, "The Kafka Streams job was not compiled")
                draft.rename(folder)
    return folder


def _javac(java: Java) -> str:
    """The compiler beside that java, else the one on the PATH; a runtime alone has none."""
    command = shutil.which(java.command) or java.command
    beside = Path(command).resolve().with_name("javac")
    found = str(beside) if beside.is_file() else shutil.which("javac")
    if found is None:
        raise ClusterFault(
            f"{java.command} is a Java runtime without a compiler; Kafka Streams as a peer needs javac",
            hint="Install a JDK (Debian and Ubuntu: apt-get install openjdk-17-jdk-headless; macOS: brew "
            "install openjdk@17), or measure without that peer.",
        )
    return found


def quix_command(say: Say) -> list[str]:
    """The command that runs the counting job on Quix Streams, in an environment made if need be."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"quix-{QUIX_VERSION}-python{version}"
    done = folder / ".complete"
    with locked(folder.with_name(folder.name + ".lock")):
        if not done.exists():
            say(f"installing Quix Streams {QUIX_VERSION} (200 MB, once per user)")
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)], "No environment for Quix Streams was made")
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _run([*install, f"quixstreams=={QUIX_VERSION}"], "Quix Streams was not installed")
            done.touch()
    return [str(folder / "bin" / "python"), str(_QUIX_SOURCE)]


def _run(command: Sequence[str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterFault(f"{failure}: no answer within {_LIMIT_S} seconds") from None
    except OSError as error:
        raise ClusterFault(f"{failure}: {error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ClusterFault(
            f"{failure}: {' | '.join(lines[-3:]) or f'exit code {done.returncode}'}",
            hint="Check that this machine reaches a package index, or measure without that peer.",
        )

"""Finds a Java that Kafka 4 and Spark 4 accept, and says what to do if there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ops.cluster.commands import captured
from stack.errors import ClusterFault

MINIMUM_VERSION = 17
_VERSION = re.compile(r'version(?:=| )"(\d+)(?:\.(\d+))?', re.IGNORECASE)
_INSTALL = (
    "Install Java 17 or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or point JAVA_HOME or embedded.java in stack.toml at one."
)


@dataclass(frozen=True)
class Java:
    """A usable java command and its major version."""

    command: str
    version: int


def find_java(configured: str | None = None) -> Java:
    """The configured java, else JAVA_HOME's, else the one on the PATH."""
    command = configured or _from_java_home() or shutil.which("java")
    if command is None:
        raise ClusterFault("no Java was found", hint=_INSTALL)
    text = _written_version(command) or _ask_version(command)
    version = parse_version(text)
    if version is None:
        raise ClusterFault(f"{command} does not say which Java it is: {text.strip()[:200]!r}", hint=_INSTALL)
    if version < MINIMUM_VERSION:
        raise ClusterFault(
            f"{command} is Java {version}; Kafka 4 and Spark 4 need {MINIMUM_VERSION} or newer", hint=_INSTALL
        )
    return Java(command, version)


def parse_version(text: str) -> int | None:
    """The major version in what `java -version` prints, or a `release` file says; 1.8 counts as 8."""
    match = _VERSION.search(text)
    if not match:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def _from_java_home() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return None
    command = Path(home) / "bin" / "java"
    if not command.is_file():
        raise ClusterFault(f"JAVA_HOME is {home}, but there is no {command}", hint=_INSTALL)
    return str(command)


def _written_version(command: str) -> str:
    """What the file says that comes with every JDK: asking would start a JVM, for a third of a second.

    Nothing where `java` is a script or a stand-in that chooses one.
    """
    place = Path(shutil.which(command) or command).resolve()
    release = place.parent.parent / "release"
    if place.parent.name != "bin" or not os.access(place, os.X_OK) or not release.is_file():
        return ""
    lines = release.read_text("utf-8", "replace").splitlines()
    return next((line for line in lines if line.startswith("JAVA_VERSION=") and parse_version(line)), "")


def _ask_version(command: str) -> str:
    try:
        answer = captured([command, "-version"], 30)
    except OSError as error:
        raise ClusterFault(f"{command} cannot be run: {error.strerror}", hint=_INSTALL) from None
    except subprocess.TimeoutExpired:
        raise ClusterFault(f"{command} -version did not answer within 30 seconds", hint=_INSTALL) from None
    return answer.stderr + answer.stdout

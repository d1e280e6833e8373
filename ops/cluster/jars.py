"""Jars: resolved once by the Ivy inside the pyspark wheel, kept in a per-user cache. Kafka's above all.

The cache folder of a set has a manifest with a checksum per jar. It is checked at every start; a jar that is
missing or damaged is named and the set is fetched anew. Without a network a complete cache suffices.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ops.cluster.commands import captured
from ops.cluster.files import locked, read_json, write_atomically, write_json
from ops.cluster.java import Java
from stack.errors import ClusterFault, CorruptState

_FETCH_LIMIT_S = 600
CACHE_VARIABLE = "FEEDSTACK_CACHE"
IVY_SETTINGS_VARIABLE = "FEEDSTACK_IVY_SETTINGS"


@dataclass(frozen=True)
class JarSet:
    """Modules (organisation, name, version) that are fetched together with all they need; the first one
    gives the set its version, and its jar must be among what was fetched. `alone`: without what they need,
    where another set has it."""

    name: str
    title: str
    size: str
    modules: tuple[tuple[str, str, str], ...]
    alone: bool = False

    @property
    def version(self) -> str:
        return self.modules[0][2]

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


KAFKA_VERSION = "4.3.1"
_KAFKA = JarSet(
    "kafka",
    "Kafka",
    "44 MB",
    (
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        # kafka_2.13 brings log4j 2 but no SLF4J binding: without one the broker would not log at all.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)


def cache_folder() -> Path:
    """Where jars are kept for this user, shared by all stacks on the machine."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "feedstack"


def spark_jars() -> Path:
    """The jars inside the pyspark package: ZooKeeper and Ivy come from there."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.origin:
        raise ClusterFault("pyspark is not installed", hint="Run `make setup`.")
    folder = Path(spec.origin).parent / "jars"
    if not folder.is_dir():
        raise ClusterFault(f"pyspark has no jars in {folder}", hint="Reinstall it: `make clean setup`.")
    return folder


def kafka_folder() -> Path:
    """Where Kafka's jars are, or would be."""
    return cache_folder() / _KAFKA.folder


def kafka_jars(java: Java, say: Callable[[str], None]) -> Path:
    """The folder with Kafka's jars, fetched if need be. `say` hears about anything that takes time."""
    return cached_jars(_KAFKA, java, say)


def cached_jars(wanted: JarSet, java: Java, say: Callable[[str], None]) -> Path:
    """The folder with a set of jars, fetched if need be."""
    folder = cache_folder() / wanted.folder
    with locked(cache_folder() / f"{wanted.folder}.lock"):
        fault = manifest_fault(folder)
        if fault is None:
            return folder
        if folder.exists():
            say(f"{fault}; fetching {wanted.title}'s jars again")
        else:
            say(f"fetching {wanted.title} {wanted.version} ({wanted.size}, once per user)")
        _fetch(wanted, java, folder)
    return folder


def manifest_fault(folder: Path) -> str | None:
    """What is wrong with a cached set of jars, or None if it is whole."""
    if not folder.is_dir():
        return f"{folder} does not exist yet"
    try:
        manifest = read_json(folder / "manifest.json")
    except CorruptState as error:
        return error.message
    sums = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(sums, dict) or not sums:
        return f"{folder} has no manifest"
    for name, expected in sums.items():
        jar = folder / name
        if not jar.is_file():
            return f"{jar} is missing"
        if _sha256(jar) != expected:
            return f"{jar} is damaged"
    return None


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch(wanted: JarSet, java: Java, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as temporary:
        work = Path(temporary)
        complaints = []
        for fetch in (_fetch_by_ivy, _fetch_by_maven):
            complaint = fetch(wanted, java, work)
            if complaint is None:
                break
            complaints.append(complaint)
        else:
            raise ClusterFault(
                f"{wanted.title}'s jars could not be fetched:\n  " + "\n  ".join(complaints),
                hint="Check that this machine reaches a Maven repository; behind a mirror, name an Ivy "
                f"settings file in {IVY_SETTINGS_VARIABLE} or configure Maven. Or copy the cache folder "
                f"{folder} from a machine that has it.",
            )
        jars = work / "jars"
        sums = {jar.name: _sha256(jar) for jar in sorted(jars.glob("*.jar"))}
        write_json(jars / "manifest.json", {wanted.name: wanted.version, "sha256": sums})
        if folder.exists():
            shutil.rmtree(folder)
        jars.rename(folder)


def _fetch_by_ivy(wanted: JarSet, java: Java, work: Path) -> str | None:
    """Let Ivy retrieve into work/jars; None when it did, else its complaint."""
    dependencies = "".join(
        f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->default" '
        f'transitive="{str(not wanted.alone).lower()}"/>'
        for org, name, version in wanted.modules
    )
    write_atomically(
        work / "ivy.xml",
        f'<ivy-module version="2.0"><info organisation="feedstack" module="{wanted.name}"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
    )
    command = [java.command, "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    if settings:
        command += ["-settings", settings]
    command += ["-cache", str(work / "ivy-cache"), "-ivy", str(work / "ivy.xml"), "-warn"]
    command += ["-types", "jar", "bundle"]
    command += ["-retrieve", str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
    return _run(command, wanted, work, "Ivy")


def _ivy_jar() -> Path:
    found = sorted(spark_jars().glob("ivy-*.jar"))
    if not found:
        raise ClusterFault(f"no Ivy in {spark_jars()}", hint="Reinstall pyspark: `make clean setup`.")
    return found[-1]


def _fetch_by_maven(wanted: JarSet, java: Java, work: Path) -> str | None:  # noqa: ARG001
    """The same by Maven, where it is installed."""
    maven = shutil.which("mvn")
    if maven is None:
        return "Maven: not installed (it would have been tried next)"
    dependencies = "".join(
        f"<dependency><groupId>{org}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for org, name, version in wanted.modules
    )
    write_atomically(
        work / "pom.xml",
        "<project><modelVersion>4.0.0</modelVersion><groupId>feedstack</groupId>"
        f"<artifactId>{wanted.name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>",
    )
    shutil.rmtree(work / "jars", ignore_errors=True)
    goal = "dependency:copy-dependencies"
    command = [maven, "-q", "-B", "-f", str(work / "pom.xml"), goal]
    command += [f"-DoutputDirectory={work / 'jars'}", "-DincludeScope=runtime"]
    command += ["-DexcludeTransitive=true"] if wanted.alone else []
    return _run(command, wanted, work, "Maven")


def _run(command: list[str], wanted: JarSet, work: Path, tool: str) -> str | None:
    try:
        done = captured(command, _FETCH_LIMIT_S, cwd=work)
    except subprocess.TimeoutExpired:
        return f"{tool}: no answer within {_FETCH_LIMIT_S} seconds"
    except OSError as error:
        return f"{tool}: {error}"
    if done.returncode == 0 and list((work / "jars").glob(f"{wanted.modules[0][1]}-*.jar")):
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"{tool}: {' | '.join(lines[-3:]) or f'exit code {done.returncode}'}"

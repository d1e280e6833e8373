"""How a runner asks for Spark: small, quiet, without retries of its own, and quick to notice the dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.runtime.host import IDENTITY_VARIABLE
from stack.runtime.spark_jvm import QUICK_WORDS

# Where our packages are, for executors that run from a checkout which is not installed.
_PACKAGES = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class SparkPlace:
    """What of Spark's is where: its Java, its scratch folder, its log settings, more words for its JVM."""

    folder: Path
    java: str = "java"
    log4j: Path | None = None
    jvm_words: tuple[str, ...] = ()
    # The same for executors. Where a file that they name is missing, a JVM does without.
    executor_words: tuple[str, ...] = ()
    memory: str = "512m"

    @property
    def words(self) -> list[str]:
        """The words for the JVM of the application itself."""
        words = [*self.jvm_words, f"-Djava.io.tmpdir={self.folder}"]
        return [*words, f"-Dlog4j2.configurationFile={self.log4j}"] if self.log4j else words


def spark_conf(
    master: str, name: str, identity: str, place: SparkPlace, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Every setting of the Spark application of a runner; what stack.toml gives comes last."""
    return {
        "spark.master": master,
        "spark.app.name": f"feedstack {name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A container is started again by the runner and by nobody else.
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.worker.reuse": "false",
        "spark.python.daemon.module": "stack.runtime.daemon",
        "spark.python.task.killTimeout": "500ms",
        "spark.locality.wait": "0",
        "spark.local.dir": str(place.folder),
        "spark.driver.memory": place.memory,
        "spark.cleaner.periodicGC.interval": "10min",
        **_network(master, place.executor_words),
        **{f"spark.executorEnv.{key}": value for key, value in _environment(identity).items()},
        **(given or {}),
    }


def _environment(identity: str) -> Mapping[str, str]:
    return {
        IDENTITY_VARIABLE: identity,
        "PYTHONPATH": _PACKAGES,
        # Both libraries would start threads when they are loaded, which must not be before a fork.
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }


def _network(master: str, words: tuple[str, ...]) -> Mapping[str, str]:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local"):
        return loopback
    here = "//127.0.0.1:" in master or "//localhost:" in master
    return {
        **(loopback if here else {}),
        # An executor that is gone is noticed by its heartbeat where its connection does not tell.
        "spark.executor.heartbeatInterval": "2s",
        "spark.network.timeout": "10s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "10000",
        "spark.network.timeoutInterval": "2s",
        "spark.rpc.askTimeout": "10s",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": " ".join(_quoted(word) for word in (*QUICK_WORDS, *words)),
    }


def _quoted(word: str) -> str:
    """A word among others that Spark splits at white space."""
    return f'"{word}"' if any(one.isspace() for one in word) else word

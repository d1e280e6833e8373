"""The trial of docker-compose.yml: a cluster from nothing, jobs on it, every service killed under load.

It has a project and ports of its own, so that a cluster which runs on this machine is left alone. At its end
nothing stays behind but the image.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ops.chaos.chain import chain_on, deploy_chain
from ops.chaos.reading import VerifierFault
from ops.chaos.traffic import Traffic
from ops.chaos.verdict import Kind, Report
from ops.cluster.ports import free_port
from ops.compose.engine import ALL_PROFILES, ROOT, Compose, run
from stack.errors import ClusterFault, FeedstackError
from stack.settings import Settings, load_settings

VICTIMS = ("kafka-2", "spark-worker-1", "runner", "zookeeper")
"""Who is killed, one after the other."""

GROWN_VICTIMS = ("zookeeper", "runner")
"""The same once there are others to take over."""

_SEED = 7
_RATE = 600
_AWAY_S = 5.0
_QUIET_S = 3.0
_COMMAND_S = 180.0
# Twelve servers share the cores here, and all of them may start at once.
_RECOVER_S = 300.0
_ENSEMBLE_TRIES = 20
Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a trial has come to."""

    build_s: float = 0.0
    up_s: float = 0.0
    first_record_s: float = 0.0
    gaps_s: dict[str, float] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    left_behind: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return self.report.is_exact and not self.left_behind

    def as_json(self) -> dict[str, Any]:
        report = self.report
        return {
            "build_s": round(self.build_s, 1),
            "up_s": round(self.up_s, 1),
            "first_record_s": round(self.first_record_s, 1),
            "gaps_s": {name: round(gap, 1) for name, gap in self.gaps_s.items()},
            "records": dict(report.records),
            "lost": report.count(Kind.LOST),
            "doubled": report.count(Kind.DOUBLED),
            "findings": [str(one) for one in report.findings],
            "left_behind": self.left_behind,
        }


def run_trial(say: Say, records: int) -> Outcome:
    """Make a trial on an engine that runs; ClusterFault if it cannot be brought to its end."""
    outcome = Outcome()
    compose = _apart()
    with tempfile.TemporaryDirectory(prefix="feedstack-trial-") as folder:
        settings = _settings(compose, Path(folder))
        try:
            begun = time.monotonic()
            compose.run("build")
            outcome.build_s = time.monotonic() - begun
            say(f"the image is built ({outcome.build_s:.0f} s)")
            _Trial(compose, settings, outcome, say).carry_out(records)
        except (FeedstackError, VerifierFault) as error:
            message = error.message if isinstance(error, FeedstackError) else str(error)
            kept = _keep_logs(compose)
            complaints = "".join(f"\n  {line}" for line in compose.complaints())
            raise ClusterFault(message + complaints, hint=f"Logs are kept in {kept}.") from error
        finally:
            replace(compose, profiles=ALL_PROFILES).run("down", "-v", "--remove-orphans")
    outcome.left_behind = compose.left_behind()
    return outcome


class _Trial:
    """One trial on its cluster."""

    def __init__(self, compose: Compose, settings: Settings, outcome: Outcome, say: Say) -> None:
        self._compose = compose
        self._settings = settings
        self._outcome = outcome
        self._say = say

    def carry_out(self, records: int) -> None:
        """From nothing to the verdict."""
        self._begin()
        with (
            chain_on(replace(self._settings, schemas=self._settings.root / "schemas")) as stage,
            contextlib.closing(Traffic(stage, _SEED, _RATE, _RECOVER_S)) as traffic,
        ):
            deploy_chain(stage, self._say)
            traffic.start()
            for service in VICTIMS:
                self._kill(service, service, traffic)
            self._restart(traffic)
            self._grow(traffic)
            self._outcome.report = traffic.judge(records, self._say)

    def _begin(self) -> None:
        begun = time.monotonic()
        self._up()
        self._outcome.up_s = time.monotonic() - begun
        self._say(f"every service is well ({self._outcome.up_s:.0f} s)")
        self._say(self._compose.run("run", "--rm", "cli", "stack", "doctor").strip())
        self._stack("feeds", "apply")
        self._stack("feeds", "generate", "page-views", "--count", "1000")
        self._stack("jobs", "deploy", str(ROOT / "jobs" / "count-views"))
        self._say(self._stack("feeds", "tail", "views-per-user", "--from", "oldest", "--limit", "1").strip())
        self._outcome.first_record_s = time.monotonic() - begun
        self._say(f"from `up` to the first derived record: {self._outcome.first_record_s:.0f} s")

    def _stack(self, *words: str) -> str:
        """A command of the stack on this machine."""
        file = self._settings.file
        return run([sys.executable, "-m", "ops", "--config", str(file), *words], _COMMAND_S)

    def _up(self) -> None:
        self._compose.run("up", "-d", "--wait")

    def _kill(self, service: str, title: str, traffic: Traffic) -> None:
        """Kill it, leave it dead for a while, start it again."""
        time.sleep(_QUIET_S)
        begun = time.monotonic()
        self._compose.run("kill", service)
        time.sleep(_AWAY_S)
        self._compose.run("start", service)
        self._note(title, traffic.outage_s(begun), f"was killed, and started again after {_AWAY_S:.0f} s")
        self._up()

    def _note(self, title: str, gap_s: float, done: str) -> None:
        self._outcome.gaps_s[title] = gap_s
        self._say(f"{title} {done}: {gap_s:.1f} s without outputs")

    def _restart(self, traffic: Traffic) -> None:
        """Stop everything and start it again; the volumes stay."""
        time.sleep(_QUIET_S)
        begun = time.monotonic()
        self._compose.run("stop")
        self._up()
        self._note("everything", traffic.outage_s(begun), "was stopped and started again")

    def _grow(self, traffic: Traffic) -> None:
        """Add two ZooKeeper servers and a runner, and kill those that were there."""
        time.sleep(_QUIET_S)
        begun = time.monotonic()
        self._compose = replace(self._compose, profiles=("ensemble", "standby"))
        self._up()
        self._await_ensemble()
        self._note("growth", traffic.outage_s(begun), "by two ZooKeeper servers and a runner")
        for service in GROWN_VICTIMS:
            self._kill(service, f"{service}, of several", traffic)

    def _await_ensemble(self) -> None:
        """Wait until all three ZooKeeper servers are members."""
        words = ["run", "--rm", "cli", "python", "-m", "ops.compose.ensemble", "show", "zookeeper:2181"]
        for _ in range(_ENSEMBLE_TRIES):
            if len(self._compose.run(*words).split()) == 6:
                return
            time.sleep(1)
        raise ClusterFault("ZooKeeper has not become an ensemble of three")


def _apart() -> Compose:
    """A project of its own on free ports."""
    ports: dict[str, int] = {}
    for name in Compose().ports:
        ports[name] = free_port(ports.values())
    return Compose("feedstack-trial", {name: str(port) for name, port in ports.items()})


def _settings(compose: Compose, folder: Path) -> Settings:
    """How this machine reaches that cluster: the file that is shipped, with other ports."""
    text = (ROOT / "ops" / "compose" / "stack.toml").read_text("utf-8")
    for name, port in Compose(environment=dict.fromkeys(compose.ports, "")).ports.items():
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{compose.ports[name]}")
    text = text.replace('"../../schemas"', json.dumps(str(ROOT / "schemas")))
    file = folder / "stack.toml"
    file.write_text(text.replace('"../../.stack/compose"', '"data"'), encoding="utf-8")
    return load_settings(file)


def _keep_logs(compose: Compose) -> Path:
    """What every service has printed, in a folder that stays."""
    kept = Path(tempfile.mkdtemp(prefix="feedstack-trial-logs-"))
    for one in compose.containers():
        name = one["Name"].strip("/")
        with contextlib.suppress(FeedstackError):
            service = one["Config"]["Labels"]["com.docker.compose.service"]
            (kept / f"{name}.log").write_text(compose.run("logs", "--no-color", service), encoding="utf-8")
    return kept

"""The health check of a service: `python -m ops.compose.health ROLE` ends with 0 if it does its work.

Only the standard library is imported: every service is asked every few seconds.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ops.cluster.probes import (
    answers_health,
    answers_ruok,
    answers_srvr,
    answers_versions,
    fetch_json,
    is_fresh,
)
from ops.compose.ports import HTTP_PORT, KAFKA_PORT, MASTER_UI_PORT, WORKER_UI_PORT, ZOOKEEPER_PORT

FAULT_FILE = Path("/tmp/feedstack-fault")  # noqa: S108 - of a container, where nobody else is
_ALIVE_FILE = Path("/data/tmp/runner/alive")
_CONF = Path("/data/conf")
_STALE_S = 10.0


def master_is_alive() -> bool:
    """Whether Spark's master serves."""
    answer = fetch_json(MASTER_UI_PORT, "/json/")
    return isinstance(answer, dict) and answer.get("status") == "ALIVE"


def worker_is_registered() -> bool:
    """Whether the master counts on this worker."""
    host = os.environ.get("SPARK_MASTER", "").removeprefix("spark://").partition(":")[0]
    mine, masters = fetch_json(WORKER_UI_PORT, "/json/"), fetch_json(MASTER_UI_PORT, "/json/", host)
    if not isinstance(mine, dict) or not isinstance(masters, dict):
        return False
    return any(
        one.get("id") == mine.get("id") and one.get("state") == "ALIVE" for one in masters.get("workers", ())
    )


def quorum_is_there() -> bool:
    """Whether ZooKeeper serves; one of several needs the others for that, and says which."""
    if answers_srvr(ZOOKEEPER_PORT):
        return True
    for file in sorted(_CONF.glob("zoo.cfg.dynamic*"), key=lambda one: one.stat().st_mtime)[-1:]:
        hosts = re.findall(r"^server\.\d+=([^:]+):", file.read_text("utf-8"), re.MULTILINE)
        away = [host for host in hosts if not answers_ruok(ZOOKEEPER_PORT, host)]
        if 2 * len(away) >= len(hosts) > 1:
            print(  # noqa: T201
                f"feedstack: {', '.join(away)} of the ensemble do not answer. "
                "Start them: docker compose --profile ensemble up -d --wait"
            )
    return False


def runner_decides() -> bool:
    """Whether the runner goes round, or stands by."""
    return is_fresh(_ALIVE_FILE, _STALE_S)


CHECKS: Mapping[str, Callable[[], bool]] = {
    "kafka": lambda: answers_versions(KAFKA_PORT),
    "zookeeper": quorum_is_there,
    "spark-master": master_is_alive,
    "spark-worker": worker_is_registered,
    "runner": runner_decides,
    "http": lambda: answers_health(HTTP_PORT),
}


def main(arguments: list[str]) -> int:
    """0 if the service is well; what ails it is printed, and `docker inspect` shows it."""
    if FAULT_FILE.exists():
        print(FAULT_FILE.read_text("utf-8"))  # noqa: T201
        return 1
    return 0 if CHECKS[arguments[0]]() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

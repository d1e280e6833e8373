"""What lies where in a stack's data folder, and what is remembered about its cluster.

<data>/cluster.json      cluster id, number of brokers, ports: remembered from start to start
<data>/endpoints.json    where the running stack answers; there only while it is up
<data>/run.json          what the supervisor says about its children
<data>/conf/             files given to the children, written anew at every start
<data>/kafka-N/          log folder of broker N
<data>/zookeeper/        ZooKeeper's snapshots and transaction log
<data>/tmp/              what the children unpack while they run
<data>/logs/             one rotated log per child, and the supervisor's
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.cluster.files import read_json, write_json
from stack.errors import ClusterFault, CorruptState

FORMAT = 1


@dataclass(frozen=True)
class Layout:
    """Paths inside one data folder."""

    data: Path

    @property
    def cluster_file(self) -> Path:
        return self.data / "cluster.json"

    @property
    def endpoints_file(self) -> Path:
        return self.data / "endpoints.json"

    @property
    def run_file(self) -> Path:
        return self.data / "run.json"

    @property
    def lock_file(self) -> Path:
        return self.data / ".lock"

    @property
    def conf(self) -> Path:
        return self.data / "conf"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    def service(self, name: str) -> Path:
        return self.data / name

    def temporary(self, name: str) -> Path:
        """Where a child unpacks what it needs while it runs; emptied at its next start."""
        return self.data / "tmp" / name


@dataclass(frozen=True)
class Cluster:
    """What stays the same from start to start."""

    cluster_id: str
    brokers: int
    ports: Mapping[str, int] = field(default_factory=dict)


def new_cluster(brokers: int) -> Cluster:
    """A cluster that has not been started yet, with an id in Kafka's own form."""
    identifier = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    # Kafka's command line would take a leading dash for an option.
    return Cluster(identifier.replace("-", "A"), brokers)


def read_cluster(layout: Layout) -> Cluster | None:
    """The remembered cluster, or None in a new data folder."""
    written = read_json(layout.cluster_file)
    if written is None:
        return None
    try:
        if written["format"] != FORMAT:
            raise ClusterFault(
                f"{layout.data} was made by another version of Feedstack: its format is {written['format']}, "
                f"this one knows {FORMAT}",
                hint="Use the version that made it, or another data folder.",
            )
        return Cluster(written["cluster_id"], written["brokers"], dict(written["ports"]))
    except (KeyError, TypeError, ValueError):
        file = layout.cluster_file
        raise CorruptState(
            f"{file} does not hold what it should",
            hint=f"Move it aside (mv {file} {file}.broken) and run `stack up` again.",
        ) from None


def recall_cluster(layout: Layout) -> Cluster | None:
    """What the brokers' own folders tell of a cluster whose cluster.json was lost; the ports are lost."""
    folders = [folder for folder in layout.data.glob("kafka-[1-9]") if folder.is_dir()]
    for folder in folders:
        try:
            lines = (folder / "meta.properties").read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            if line.startswith("cluster.id="):
                return Cluster(line.removeprefix("cluster.id=").strip(), len(folders))
    return None


def write_cluster(layout: Layout, cluster: Cluster) -> None:
    write_json(
        layout.cluster_file,
        {
            "format": FORMAT,
            "cluster_id": cluster.cluster_id,
            "brokers": cluster.brokers,
            "ports": dict(cluster.ports),
        },
    )

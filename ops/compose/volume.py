"""The mark on a volume: which service it belongs to, and in which format its files are."""

from __future__ import annotations

import os
from pathlib import Path

from ops.cluster.files import read_json, write_json
from stack.errors import ClusterFault, CorruptState

FORMAT = 1
_MARK = "volume.json"


def take_volume(folder: Path, service: str) -> None:
    """Mark a new volume as this service's, or find that it is; ClusterFault if it is something else."""
    if not os.access(folder, os.W_OK):
        raise ClusterFault(
            f"the volume at {folder} cannot be written by user {os.getuid()}",
            hint=f"Give it to that user (chown -R {os.getuid()} ...), or let Docker make a new one.",
        )
    try:
        mark = read_json(folder / _MARK)
    except CorruptState as error:
        raise ClusterFault(
            f"the mark of the volume is broken: {error.message}",
            hint="Restore the volume from a backup, or remove it to begin with an empty one.",
        ) from None
    if mark is None:
        _refuse_strangers(folder, service)
        write_json(folder / _MARK, {"format": FORMAT, "service": service})
        return
    found = mark if isinstance(mark, dict) else {}
    if found.get("format") != FORMAT:
        raise ClusterFault(
            f"the volume of {service} has format {found.get('format')!r}, this image knows {FORMAT}",
            hint="Use the image that made it, or move its data as docs/operations.md tells under 'Upgrades'.",
        )
    if found.get("service") != service:
        raise ClusterFault(
            f"this is the volume of {found.get('service')}, not of {service}",
            hint="Give each service its own volume, as docker-compose.yml does.",
        )


def _refuse_strangers(folder: Path, service: str) -> None:
    """A volume without a mark must be empty, but for what file systems put there themselves."""
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name != "lost+found")
    if strangers:
        raise ClusterFault(
            f"the volume of {service} holds files that no service of this cluster made: "
            f"{', '.join(strangers[:5])}",
            hint="It may come from an older version: docs/operations.md, 'Upgrades'. Else give the service "
            "an empty volume.",
        )

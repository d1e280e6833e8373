"""Commands of others that are run to their end, for what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def captured(
    command: Sequence[str],
    limit_s: float,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run it; its exit code and what it printed, whatever its bytes. OSError if there is no such command,
    TimeoutExpired if it was ended after the limit.
    """
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
        cwd=cwd,
        env=environment,
    )

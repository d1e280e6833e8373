"""Logs of our own processes: one rotated file each."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path


def log_to(file: Path | None, level: int, max_bytes: int = 1 << 20) -> None:
    """Send everything that this process logs to `file`; at most four times `max_bytes` are kept.

    Without a file it goes to standard error, for whoever collects that.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(file, maxBytes=max_bytes, backupCount=3)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])

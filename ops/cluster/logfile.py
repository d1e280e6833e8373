"""Logs of our own processes: one rotated file each."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import NoReturn


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


def leave(code: int) -> NoReturn:
    """End this process now, with all that is logged written. To be called when everything is closed.

    An interpreter that ends the usual way waits for the clients of Kafka to go, and now and then one that
    has lost its brokers never does: nobody would start the process again.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

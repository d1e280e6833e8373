"""Runs the HTTP service of one stack: `python -m ops.service --config FILE --port N`.

On the loopback, with a log in the data folder, unless it is told otherwise.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial

import uvicorn

from ops.cluster.layout import Layout
from ops.cluster.logfile import leave, log_to
from ops.cluster.place import add_console, add_place, settings_of
from ops.cluster.ports import HOST
from ops.service.alarms import Alarms, Webhook
from ops.service.app import create_app
from ops.service.metrics_routes import metrics_router
from ops.service.offsets_routes import OffsetsDesk, offsets_router
from ops.service.watcher import Watcher
from stack.connection import Stack
from stack.errors import FeedstackError, NotFound, Unavailable
from stack.zookeeper.fleet import open_fleet

_KAFKA_LIMIT_S = 100.0


def main(arguments: list[str]) -> int:
    """Serve until told to stop; a fault at the start is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m ops.service")
    add_place(parser)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default=HOST)
    add_console(parser)
    options, _ = parser.parse_known_args(arguments)
    try:
        settings = settings_of(options)
        file = None if options.console else Layout(settings.data).logs / "http.log"
        log_to(file, logging.WARNING, 10 << 20)
        with Stack.connect(settings) as stack:
            _wait_for_kafka(stack)
            fleet = partial(open_fleet, stack.endpoints.zookeeper, settings.name)
            webhook = None if settings.alarms_webhook is None else Webhook(settings.alarms_webhook)
            watcher = Watcher(partial(Stack.connect, settings), Alarms(settings.name, webhook))
            watcher.start()
            router = metrics_router(fleet, lambda: (watcher.measured, watcher.looked))
            desk = OffsetsDesk(stack)
            app = create_app(stack.registry, router, offsets_router(desk))
            uvicorn.run(app, host=options.host, port=options.port, log_config=None, access_log=False)
            watcher.close()
            desk.close()
    except FeedstackError as error:
        sys.stderr.write(f"feedstack: {error.message}. {error.hint}\n")
        return 1
    return 0


def _wait_for_kafka(stack: Stack) -> None:
    """The service starts beside Kafka, not after it: load everything, then wait until it answers."""
    deadline = time.monotonic() + _KAFKA_LIMIT_S
    while True:
        try:
            stack.registry.state()
            stack.catalogue.feeds()
            return
        except (Unavailable, NotFound):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

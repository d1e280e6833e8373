"""What the services of docker-compose.yml run: `python -m ops.compose ROLE`.

A fault that only a person can mend is told once, and the service stands still with it, unhealthy: started
again and again it would only tell it again and again.
"""

from __future__ import annotations

import os
import signal
import sys

from ops.compose.health import FAULT_FILE
from ops.compose.roles import ROLES, become
from stack.errors import FeedstackError


def main(arguments: list[str]) -> None:
    """Become the server of a role, or tell why not."""
    if len(arguments) != 1 or arguments[0] not in ROLES:
        sys.exit(f"usage: python -m ops.compose {'|'.join(ROLES)}")
    try:
        FAULT_FILE.unlink(missing_ok=True)
        server = become(arguments[0], os.environ)
    except FeedstackError as error:
        text = f"feedstack: {error.message}. {error.hint}"
        FAULT_FILE.write_text(text + "\n", encoding="utf-8")
        print(text, file=sys.stderr, flush=True)  # noqa: T201
        while True:
            signal.pause()
    os.execve(server.command[0], server.command, {**os.environ, **server.environment})  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])

"""Whether a server answers: one cheap question each.

Only the standard library is imported: health checks run these often.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
_CLIENT = b"feedstack"


def answers_versions(port: int, host: str = LOOPBACK) -> bool:
    """Whether a broker answers an ApiVersions request, the first that every client sends."""
    body = struct.pack(">hhih", 18, 0, 1, len(_CLIENT)) + _CLIENT
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(body)) + body)
            head = connection.recv(10)
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (1, 0)


def answers_ruok(port: int, host: str = LOOPBACK) -> bool:
    """ZooKeeper's own way to ask whether it runs."""
    return four_letters(b"ruok", port, host) == b"imok"


def answers_srvr(port: int, host: str = LOOPBACK) -> bool:
    """Whether ZooKeeper serves: one of an ensemble without a quorum runs, but does not."""
    return b"Mode: " in four_letters(b"srvr", port, host)


def four_letters(word: bytes, port: int, host: str = LOOPBACK) -> bytes:
    """What ZooKeeper answers to one of its four-letter words; nothing if it does not."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(word)
            while part := connection.recv(4096):
                answer += part
    except OSError:
        pass
    return answer


def answers_health(port: int, host: str = LOOPBACK) -> bool:
    """Whether our service, and what it stands on, answer."""
    return fetch(port, "/health", host) is not None


def fetch_json(port: int, path: str, host: str = LOOPBACK) -> Any:
    """The JSON that a server answers with, or None."""
    body = fetch(port, path, host)
    try:
        return None if body is None else json.loads(body)
    except ValueError:
        return None


def fetch(port: int, path: str, host: str = LOOPBACK) -> bytes | None:
    """What a server answers to a GET, or None unless that went well."""
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_fresh(file: Path, stale_s: float) -> bool:
    """Whether somebody has touched a file within so many seconds."""
    try:
        return time.time() - file.stat().st_mtime < stale_s
    except OSError:
        return False

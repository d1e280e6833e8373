"""Dead letters of a container on their way to Kafka: always within the transaction of a commit."""

from __future__ import annotations

from dataclasses import replace

from stack.kafka.admin import Topic
from stack.kafka.writer import MAX_RECORD_BYTES, LogWriter
from stack.model.dead import DeadLetter, letter_headers
from stack.model.plan import TaskId

# For the frame of the record and of each header.
_FRAME_BYTES, _HEADER_BYTES = 200, 12


class DeadLetters:
    """What was not sent yet. A topic has a partition per task, so that letters keep the order of a task."""

    def __init__(self, topic: Topic | None) -> None:
        self._topic = topic
        self._waiting: list[DeadLetter] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, letter: DeadLetter) -> None:
        """Keep a letter for the next commit."""
        self._waiting.append(letter)

    def send(self, writer: LogWriter) -> None:
        """Hand over all of them; the writer must be in a transaction."""
        waiting, self._waiting = self._waiting, []
        topic = self._topic
        if topic is None:
            raise AssertionError("a job without a topic for dead letters has made some")
        for letter in map(fitted, waiting):
            partition = TaskId.parse(letter.task).partition % topic.partitions
            headers = letter_headers(letter)
            writer.write_one(topic.name, letter.value, letter.key, headers=headers, partition=partition)

    def drop(self) -> None:
        """Forget what was not sent."""
        self._waiting.clear()


def fitted(letter: DeadLetter) -> DeadLetter:
    """The letter as it fits into a record: of what is too large the beginning, its headers last of all."""
    value = letter.value or b""
    whole = len(value)
    if _size(letter) <= MAX_RECORD_BYTES:
        return letter
    cut = replace(letter, full_bytes=whole)
    room = MAX_RECORD_BYTES - (_size(cut) - whole)
    if room < 0:
        # Its own headers leave no room: the place is there, and they stand in the original.
        cut = replace(cut, headers=())
        room = MAX_RECORD_BYTES - (_size(cut) - whole)
    if room < 0:
        cut = replace(cut, key=None)
        room = MAX_RECORD_BYTES - (_size(cut) - whole)
    return replace(cut, value=value[:room])


def _size(letter: DeadLetter) -> int:
    headers = letter_headers(letter)
    told = sum(len(name.encode()) + len(text or b"") + _HEADER_BYTES for name, text in headers)
    return len(letter.value or b"") + len(letter.key or b"") + told + _FRAME_BYTES

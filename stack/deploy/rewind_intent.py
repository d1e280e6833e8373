"""What a rewind is about to do, as the newest checkpoints of all tasks carry it while it is under way."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stack.engine.rewind import StateChoice
from stack.errors import BadInput
from stack.machine import time_ms
from stack.model.checkpoint import REWIND, Checkpoint
from stack.model.plan import TaskId
from stack.offsets.audit import AuditEntry, person
from stack.offsets.codec import CheckpointDecoder, CheckpointEncoder


@dataclass(frozen=True)
class Intent:
    """Where each task goes, and what is cut off from tables. `asked` is what the person typed.

    `followers` are jobs that go back with this one, since they read what it writes; `leader` is the job that
    was asked for. What each passes over lies between `gaps`, per input and partition, and its end at the
    landing.
    """

    id: str
    words: str
    by: str
    reason: str
    state: StateChoice
    targets: Mapping[TaskId, Checkpoint | None]
    # Per table output the offsets at which its partitions are cut.
    cuts: Mapping[str, tuple[int, ...]]
    asked: str = ""
    leader: str = ""
    gaps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    followers: Mapping[str, Intent] = field(default_factory=dict)

    def jobs(self, name: str) -> dict[str, Intent]:
        """All that go back, the job of this name first."""
        return {name: self, **self.followers}

    @property
    def mark(self) -> str:
        """What the job's entry says meanwhile."""
        return f"to {self.words}, {self.id}"

    def to_text(self, task: TaskId, encode: CheckpointEncoder) -> str:
        """What the checkpoint of one task carries."""
        tree = {**self._tree(), "target": _packed(self.targets[task], encode)}
        if task == min(self.targets):
            # Once is enough: who goes on with it needs the intents of all tasks anyway.
            tree["followers"] = {job: one._whole_tree(encode) for job, one in self.followers.items()}
        return json.dumps(tree)

    def _tree(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "to": self.words,
            "asked": self.asked,
            "by": self.by,
            "reason": self.reason,
            "state": str(self.state),
            "cuts": {feed: list(offsets) for feed, offsets in self.cuts.items()},
            "leader": self.leader,
            "gaps": {feed: list(offsets) for feed, offsets in self.gaps.items()},
        }

    def _whole_tree(self, encode: CheckpointEncoder) -> dict[str, Any]:
        return {
            **self._tree(),
            "targets": {str(task): _packed(one, encode) for task, one in self.targets.items()},
        }


def _packed(target: Checkpoint | None, encode: CheckpointEncoder) -> str | None:
    return None if target is None else base64.b64encode(encode(target)).decode()


def _unpacked(text: str | None, decode: CheckpointDecoder) -> Checkpoint | None:
    return None if text is None else decode(base64.b64decode(text))


def new_intent(
    words: str,
    reason: str,
    state: StateChoice,
    targets: Mapping[TaskId, Checkpoint | None],
    cuts: Mapping[str, tuple[int, ...]],
    *,
    asked: str = "",
) -> Intent:
    """The intent of whoever runs this, under an id of its own."""
    return Intent(uuid.uuid4().hex[:12], words, person(), reason, state, targets, cuts, asked)


def is_intent(point: Checkpoint | None) -> bool:
    """Whether a checkpoint only says that a rewind is under way."""
    return point is not None and REWIND in point.annotations


def intent_id(point: Checkpoint) -> str | None:
    """The id of the rewind that a checkpoint says is under way."""
    return json.loads(point.annotations[REWIND])["id"] if REWIND in point.annotations else None


def intent_of(points: Mapping[TaskId, Checkpoint | None], decode: CheckpointDecoder) -> Intent | None:
    """The rewind that the newest checkpoints of all tasks say is under way.

    None also where only some of them say so: a container got in before everybody was fenced. Then nothing
    was undone yet.
    """
    if not points or len({intent_id(one) if one is not None else None for one in points.values()}) != 1:
        return None
    if not all(map(is_intent, points.values())):
        return None
    trees: dict[TaskId, dict[str, Any]] = {
        task: json.loads(point.annotations[REWIND]) for task, point in points.items() if point is not None
    }
    targets = {task: _unpacked(one["target"], decode) for task, one in trees.items()}
    followers = {
        job: _from_tree(one, {TaskId.parse(task): _unpacked(text, decode) for task, text in of_it.items()})
        for tree in trees.values()
        for job, one in tree.get("followers", {}).items()
        for of_it in [one["targets"]]
    }
    return replace(_from_tree(next(iter(trees.values())), targets), followers=followers)


def _from_tree(tree: Mapping[str, Any], targets: Mapping[TaskId, Checkpoint | None]) -> Intent:
    return Intent(
        tree["id"],
        tree["to"],
        tree["by"],
        tree["reason"],
        StateChoice(tree["state"]),
        targets,
        {feed: tuple(offsets) for feed, offsets in tree["cuts"].items()},
        tree.get("asked", ""),
        tree.get("leader", ""),
        {feed: tuple(offsets) for feed, offsets in tree.get("gaps", {}).items()},
    )


def refuse_another(job: str, intent: Intent, asked: str | None) -> None:
    """BadInput if somebody asks for another rewind than the one that is under way."""
    if asked is not None and asked not in (intent.asked, intent.words):
        raise BadInput(
            f"job {job!r} is busy with another rewind (to {intent.words}, by {intent.by})",
            hint=f"`stack rewind {job}` brings that one to its end; then go where you like.",
        )


def audit_of(job: str, intent: Intent, before: Mapping[TaskId, Checkpoint]) -> AuditEntry:
    """What the audit feed says of a rewind."""

    def told(points: Mapping[TaskId, Checkpoint | None]) -> dict[str, Any]:
        return {
            str(task): None
            if one is None
            else {
                "number": one.number,
                "version": one.version,
                "inputs": {
                    feed: {str(number): offset for number, offset in point.offsets.items()}
                    for feed, point in one.inputs.items()
                },
            }
            for task, one in points.items()
        }

    return AuditEntry(
        "rewind",
        job,
        intent.by,
        time_ms(),
        intent.reason,
        before=told(before),
        after={
            "to": intent.words,
            "id": intent.id,
            "state": str(intent.state),
            "tasks": told(intent.targets),
            **({"with": intent.leader} if intent.leader not in ("", job) else {}),
            **({"cascade": sorted(intent.followers)} if intent.followers else {}),
        },
    )

"""The jobs feed: what shall run, by job, kept in a compacted feed of the stack itself."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable

from stack.connection import Stack
from stack.errors import CorruptState, FeedstackError, NotFound
from stack.model.job import JobEntry, JobSpec, entry_from_json, entry_to_json, jobs_name
from stack.model.ledger import Changes, Entries, Ledger

# Before the name of a job that was removed without its state; no job can be named so.
_LEFT = "left/"
# Before the name and the version of a job: how its stores were coded, for whoever goes back to it.
_VERSION = "version/"

Decide = Callable[[JobEntry | None], JobEntry | None]
"""The newest entry of a job in, the one that shall stand there out; None is no entry."""


class JobsFeed:
    """Looks jobs up by name and changes them, one writer after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._read: dict[str, tuple[str, JobEntry]] = {}
        self._looked_at: Entries | None = None
        self._seen: tuple[dict[str, JobEntry], dict[str, CorruptState]] = ({}, {})

    def look(self) -> tuple[dict[str, JobEntry], dict[str, CorruptState]]:
        """All jobs in alphabetical order; and those whose entry cannot be read, with the fault.

        One broken entry must not keep the other jobs from running.
        """
        found = self._ledger.entries()
        if found is self._looked_at:
            return self._seen
        texts = _current(found)
        entries: dict[str, JobEntry] = {}
        faults: dict[str, CorruptState] = {}
        for name in sorted(texts):
            try:
                entries[name] = self._entry(name, texts[name])
            except CorruptState as fault:
                faults[name] = fault
        self._read = {name: one for name, one in self._read.items() if name in texts}
        self._looked_at, self._seen = found, (entries, faults)
        return self._seen

    def entries(self) -> dict[str, JobEntry]:
        """All jobs in alphabetical order; CorruptState if one cannot be read."""
        entries, faults = self.look()
        for fault in faults.values():
            raise fault
        return entries

    def get(self, name: str) -> JobEntry:
        """One job, or NotFound with the nearest names."""
        texts = _current(self._ledger.entries())
        if name in texts:
            return self._entry(name, texts[name])
        near = difflib.get_close_matches(name, texts, n=3, cutoff=0.5)
        if near:
            hint = f"Did you mean {' or '.join(near)}?"
        elif texts:
            hint = f"There are: {', '.join(sorted(texts)[:20])}."
        else:
            hint = "No job is deployed yet: `stack jobs deploy PATH` deploys one."
        raise NotFound(f"there is no job {name!r}", hint=hint)

    def names(self) -> list[str]:
        """Every job, also one whose entry cannot be read."""
        return sorted(_current(self._ledger.entries()))

    def find(self, name: str) -> JobEntry | None:
        """One job, or None."""
        text = self._ledger.entries().get(name)
        return None if text is None else self._entry(name, text)

    def update(self, name: str, decide: Decide) -> JobEntry | None:
        """Change one job: `decide` sees its newest entry and is asked again if somebody else was first.

        An entry that cannot be read counts as none, and stays unless another is put in its place.
        """

        def change(texts: Entries) -> Changes:
            before = self._readable(name, texts.get(name))
            after = decide(before)
            if after == before:
                return {}
            return {name: None if after is None else _to_text(after)}

        return self._readable(name, self._ledger.update(change).get(name))

    def put(self, entry: JobEntry) -> None:
        """Write one job, whatever stood there."""
        self.update(entry.spec.name, lambda _: entry)

    def remove(self, name: str) -> None:
        """Take one job out. What it was stays written down until its state is gone, too."""

        def change(texts: Entries) -> Changes:
            if name not in texts:
                return {}
            entry = self._readable(name, texts[name])
            return {name: None, **({} if entry is None else {_LEFT + name: _to_text(entry)})}

        self._ledger.update(change)

    def left(self, name: str) -> JobEntry | None:
        """A job that was removed while its state stayed."""
        return self._readable(name, self._ledger.entries().get(_LEFT + name))

    def forget(self, name: str) -> None:
        """The state of a job that was removed is gone."""
        own = f"{_VERSION}{name}/"
        self._ledger.update(
            lambda texts: {key: None for key in texts if key == _LEFT + name or key.startswith(own)}
        )

    def note_stores(self, spec: JobSpec) -> None:
        """Write down how the stores of a version are coded, before it runs."""
        key = f"{_VERSION}{spec.name}/{spec.version}"
        text = json.dumps({one.name: [one.key, one.value] for one in spec.stores}, separators=(",", ":"))
        self._ledger.update(lambda texts: {} if texts.get(key) == text else {key: text})

    def codecs(self, name: str, version: str) -> dict[str, tuple[str, str]] | None:
        """How keys and values of each store of a version were coded; None if nobody has written it down."""
        text = self._ledger.entries().get(f"{_VERSION}{name}/{version}")
        try:
            found = json.loads(text or "null")
            return {store: (str(key), str(value)) for store, (key, value) in found.items()}
        except (ValueError, TypeError, AttributeError):
            return None

    def confirmed(self, name: str) -> JobSpec | None:
        """The last version that has committed under a name, if its state may still be there."""
        texts = self._ledger.entries()
        for key in (name, _LEFT + name):
            entry = self._readable(name, texts.get(key))
            spec = None if entry is None else entry.spec if entry.confirmed else entry.previous
            if spec is not None:
                return spec
        return None

    def _readable(self, name: str, text: str | None) -> JobEntry | None:
        try:
            return None if text is None else self._entry(name, text)
        except CorruptState:
            return None

    def _entry(self, name: str, text: str) -> JobEntry:
        """Read an entry, once per text: runners ask again and again."""
        known = self._read.get(name)
        if known is not None and known[0] == text:
            return known[1]
        entry = _from_text(name, text)
        self._read[name] = (text, entry)
        return entry


def jobs_feed(stack: Stack) -> JobsFeed:
    """The jobs feed of a stack, closed with the stack's connection."""
    return JobsFeed(stack.ledger(jobs_name(stack.settings.name)))


def _current(texts: Entries) -> Entries:
    return {name: text for name, text in texts.items() if "/" not in name}


def _to_text(entry: JobEntry) -> str:
    return json.dumps(entry_to_json(entry), separators=(",", ":"), ensure_ascii=False)


def _from_text(name: str, text: str) -> JobEntry:
    try:
        entry = entry_from_json(json.loads(text))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
        FeedstackError,
    ) as error:
        raise _broken(name, repr(error)) from None
    if entry.spec.name != name:
        raise _broken(name, f"it describes the job {entry.spec.name!r}")
    return entry


def _broken(name: str, why: str) -> CorruptState:
    return CorruptState(
        f"the entry of job {name!r} in the jobs feed cannot be read: {why}",
        hint=f"Deploy the job again, which writes it anew, or take it out: `stack jobs remove {name} --yes`.",
    )

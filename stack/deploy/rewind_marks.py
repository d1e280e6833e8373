"""The marks of a rewind in the entries of its jobs: by them runners stop containers, and start them again."""

from __future__ import annotations

from dataclasses import replace

from stack.deploy.jobs import JobsFeed
from stack.deploy.rewind_intent import Intent
from stack.errors import NotFound
from stack.model.job import JobEntry, JobSpec


class Marks:
    """Puts them there and takes them away. A mark is only a request: whoever comes next may put another."""

    def __init__(self, jobs: JobsFeed) -> None:
        self._jobs = jobs

    def put(self, name: str, intent: Intent) -> dict[str, JobSpec]:
        """Mark all that go back; what each is. One that follows and was removed has nothing to bring back."""
        specs = {}
        for job, one in intent.jobs(name).items():
            entry = self._put(job, one.mark)
            if entry is not None:
                specs[job] = entry.spec
            elif job == name:
                raise NotFound(f"job {name!r} was removed by someone just now")
        return specs

    def _put(self, job: str, mark: str) -> JobEntry | None:
        return self._jobs.update(job, lambda one: one and replace(one, rewind=mark))

    def clear(self, name: str, mark: str | None) -> None:
        """Whoever has put another mark there goes on with it."""

        def change(one: JobEntry | None) -> JobEntry | None:
            if one is None or (one.rewind is not None and (mark is None or mark not in one.rewind)):
                return one
            # A try of its own: what a runner said before is not about this.
            return replace(one, rewind=None, try_number=one.try_number + 1)

        self._jobs.update(name, change)

    def alike(self, entry: JobEntry) -> dict[str, JobSpec]:
        """All jobs whose entries have the mark of the same rewind."""
        entries = self._jobs.look()[0] if entry.rewind is not None else {}
        same = {
            name: one.spec
            for name, one in entries.items()
            if one.rewind is not None and id_of(one.rewind) == id_of(entry.rewind)
        }
        return {entry.spec.name: entry.spec, **same}


def id_of(mark: str | None) -> str | None:
    """The id of the rewind that a mark is of."""
    return None if mark is None else mark.rpartition(", ")[2]

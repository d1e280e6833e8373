"""What is wrong with one value, on its way up from where it was found."""

from __future__ import annotations

from stack.errors import BadRecord


class Fault(Exception):
    """A value or bytes that a schema refuses; `reason` follows the name of the field at `path`."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self._steps: list[str] = []

    def under(self, step: str) -> Fault:
        """The same fault, seen from one level further up; a step is .name or [index]."""
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        """Where it is, as in place.city or tags[3]; empty at the top."""
        return "".join(reversed(self._steps)).removeprefix(".")

    def final(self) -> BadRecord:
        """What the caller gets: a sentence that names the field."""
        subject = f"field '{self.path}'" if self.path else "the value"
        return BadRecord(f"{subject} {self.reason}", self.hint, field=self.path or None)

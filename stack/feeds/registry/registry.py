"""The schema registry: schemas by subject and version, kept in a ledger, guarded by compatibility."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TypeVar

from stack.feeds.avro.schema import AvroSchema
from stack.feeds.registry.compatibility import Break, Level
from stack.feeds.registry.decisions import (
    Decision,
    decide_delete_subject,
    decide_delete_version,
    decide_level,
    decide_mode,
    decide_register,
    find_subject_breaks,
    find_version_breaks,
)
from stack.feeds.registry.entries import state_from_entries
from stack.feeds.registry.state import Code, Mode, Registered, RegistryNotFound, RegistryState, Which
from stack.model.ledger import Changes, Entries, Ledger

Answer = TypeVar("Answer")


class SchemaRegistry:
    """Registers, finds and deletes schemas; safe to share between threads. A `SchemaSource` for decoders.

    Questions go to `state()`. `ledger.entries()` may return the same object as long as nothing was
    written: the state is then not built again, nor if it returns equal entries. A ledger must not change
    a mapping that it has handed out.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = RLock()
        self._entries: Entries = {}
        self._state = RegistryState()
        self._schemas: dict[int, AvroSchema] = {}

    def state(self) -> RegistryState:
        """Everything registered by anyone up to now."""
        with self._lock:
            return self._state_from(self._ledger.entries())

    def schema_by_id(self, schema_id: int) -> AvroSchema:
        """The schema with this id, or NotFound.

        An id stands for the same schema for ever, so the ledger is asked once per id; and records of a
        schema that was deleted for good stay readable to who has read one before.
        """
        known = self._schemas.get(schema_id)
        if known is None:
            known = self.state().with_id(schema_id)[0].schema
            self._schemas[schema_id] = known
        return known

    def latest(self, subject: str) -> Registered:
        """The newest version of a subject, or NotFound."""
        return self.state().version(subject, None)

    def lookup(self, subject: str, schema: AvroSchema, which: Which = Which.LIVE) -> Registered:
        """The version of a subject that has this very schema, or NotFound."""
        state = self.state()
        state.existing(subject, which)
        found = state.find_text(subject, schema.text, which)
        if found is None:
            raise RegistryNotFound(
                Code.SCHEMA_NOT_FOUND,
                f"Schema not found in subject '{subject}'",
                hint="Register it first, or look at the subject's versions.",
            )
        return found

    def register(
        self, subject: str, schema: AvroSchema, *, schema_id: int | None = None, version: int | None = None
    ) -> Registered:
        """Add a schema to a subject and answer its id and version; the same schema again changes nothing."""
        return self._carry_out(lambda state: decide_register(state, subject, schema, schema_id, version))

    def find_breaks(self, subject: str, schema: AvroSchema) -> tuple[Break, ...]:
        """Why registering this schema would be refused; empty if it would not."""
        state = self.state()
        return find_subject_breaks(state, subject, schema, state.level(subject))

    def find_breaks_with(self, subject: str, schema: AvroSchema, version: int | None) -> tuple[Break, ...]:
        """The same against one version only, None being the latest; a new subject breaks nothing."""
        state = self.state()
        if version is None and not state.versions_of(subject):
            return ()
        return find_version_breaks(state.level(subject), schema, (state.version(subject, version),))

    def delete_version(self, subject: str, version: int | None, *, permanent: bool = False) -> int:
        """Hide a version (None is the latest), or remove a hidden one for good; answers its number."""
        return self._carry_out(lambda state: decide_delete_version(state, subject, version, permanent))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[int, ...]:
        """Hide a subject, or remove a hidden one for good; answers the numbers of its versions."""
        return self._carry_out(lambda state: decide_delete_subject(state, subject, permanent))

    def set_level(self, subject: str | None, level: Level | None) -> Level:
        """Set the compatibility of a subject, or of all with None; level None drops it."""
        return self._carry_out(lambda state: decide_level(state, subject, level))

    def set_mode(self, subject: str | None, mode: Mode | None, *, force: bool = False) -> Mode:
        """Set the mode of a subject, or of all with None; mode None drops it."""
        return self._carry_out(lambda state: decide_mode(state, subject, mode, force))

    def _carry_out(self, decide: Callable[[RegistryState], Decision[Answer]]) -> Answer:
        with self._lock:
            # Most requests of producers repeat what is there: they need no turn to write.
            answer, changes = decide(self.state())
            if not changes:
                return answer
            answers = [answer]

            def decide_on(entries: Entries) -> Changes:
                answers[0], newest = decide(self._state_from(entries))
                return newest

            self._state_from(self._ledger.update(decide_on))
            return answers[0]

    def _state_from(self, entries: Entries) -> RegistryState:
        if entries is not self._entries and entries != self._entries:
            self._state = state_from_entries(entries)
        self._entries = entries
        return self._state

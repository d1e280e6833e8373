"""What the schema registry answers to a request and what it then writes: state in, answer and changes out.

The rules are those of Confluent's registry. Where it is more permissive than safe, we refuse: an import
may not overwrite a version, nor give a schema a second id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from stack.errors import Incompatible
from stack.feeds.avro.schema import AvroSchema
from stack.feeds.registry.compatibility import Break, Level, check_compatibility
from stack.feeds.registry.entries import (
    HIGHEST_ID,
    highest_id_key,
    highest_id_value,
    level_key,
    level_value,
    mode_key,
    mode_value,
    schema_value,
)
from stack.feeds.registry.state import (
    Code,
    Mode,
    Registered,
    RegistryNotFound,
    RegistryRefused,
    RegistryState,
    Which,
    schema_key,
)

Answer = TypeVar("Answer")
Decision = tuple[Answer, Mapping[str, str | None]]

_READ_ONLY = (Mode.READONLY, Mode.READONLY_OVERRIDE)


def decide_register(
    state: RegistryState,
    subject: str,
    schema: AvroSchema,
    schema_id: int | None = None,
    version: int | None = None,
) -> Decision[Registered]:
    """Add a schema to a subject, or answer the version that has it already, which even READONLY allows.

    `schema_id` and `version` are for IMPORT only, which in turn wants an id: one that the registry chose
    itself could be one that a later import brings along.
    """
    refuse_bad_subject(subject)
    existing = state.find_text(subject, schema.text)
    if existing and version in (None, existing.version):
        if schema_id in (None, existing.id):
            return existing, {}
        raise _id_mismatch(schema_id, existing.id)
    mode = _refuse_read_only(state, subject)
    if mode is Mode.IMPORT:
        if schema_id is None:
            raise _not_permitted(f"Subject '{subject}' is in import mode, so the request must give an id")
        return _import(state, subject, schema, schema_id, version)
    if schema_id is not None or version is not None:
        raise _not_permitted(
            f"Subject '{subject}' is not in import mode, so the request may not give id or version"
        )
    level = state.level(subject)
    refuse_breaks(subject, level, find_subject_breaks(state, subject, schema, level))
    known = state.ids_by_text.get(schema.text)
    return _add(
        state, Registered(subject, _next_version(state, subject), known or _next_id(state), schema.text)
    )


def _import(
    state: RegistryState, subject: str, schema: AvroSchema, schema_id: int, version: int | None
) -> Decision[Registered]:
    known = state.ids_by_text.get(schema.text)
    if known is not None and known != schema_id:
        raise _id_mismatch(schema_id, known)
    if schema_id in state.uses and known is None:
        raise _not_permitted(f"Id {schema_id} already stands for another schema and cannot be overwritten")
    number = _next_version(state, subject) if version is None else version
    taken = {one.version: one for one in state.versions_of(subject, Which.ALL)}.get(number)
    if taken is not None and taken.text == schema.text and not taken.deleted:
        return taken, {}
    if taken is not None and taken.text != schema.text:
        raise _not_permitted(f"Version {number} of '{subject}' has another schema and cannot be overwritten")
    return _add(state, Registered(subject, number, schema_id, schema.text))


def _add(state: RegistryState, new: Registered) -> Decision[Registered]:
    changes: dict[str, str | None] = {schema_key(new.subject, new.version): schema_value(new)}
    if new.id > state.highest_id:
        changes[highest_id_key()] = highest_id_value(new.id)
    return new, changes


def _next_version(state: RegistryState, subject: str) -> int:
    versions = state.versions_of(subject, Which.ALL)
    return versions[-1].version + 1 if versions else 1


def _next_id(state: RegistryState) -> int:
    # Without the mark we cannot know which ids were given out before.
    state.refuse_faults("IDS")
    if state.highest_id >= HIGHEST_ID:
        raise _not_permitted(f"All ids up to {HIGHEST_ID} are used")
    return state.highest_id + 1


def find_subject_breaks(
    state: RegistryState, subject: str, schema: AvroSchema, level: Level
) -> tuple[Break, ...]:
    """What a new schema would break of a level, against the versions of its subject."""
    older = state.versions_of(subject)
    if not level.is_transitive:
        older = older[-1:]
    return find_version_breaks(level, schema, older)


def find_version_breaks(level: Level, schema: AvroSchema, older: tuple[Registered, ...]) -> tuple[Break, ...]:
    """What a new schema breaks against given versions; none of them is parsed under NONE."""
    if level is Level.NONE:
        return ()
    return check_compatibility(schema, [one.schema for one in older], level, [one.version for one in older])


def refuse_breaks(subject: str, level: Level, breaks: tuple[Break, ...]) -> None:
    """Raise Incompatible, naming subject, level, and each field and rule, unless there are no breaks."""
    if breaks:
        told = tuple(f"{one.path} ({one.rule}): {one.message}" for one in breaks)
        raise Incompatible(
            f"the schema breaks the compatibility {level} of subject '{subject}': " + "; ".join(told),
            hint="Give new fields a default, widen types only, and keep or alias old names.",
            breaks=told,
        )


def decide_delete_version(
    state: RegistryState, subject: str, version: int | None, permanent: bool
) -> Decision[int]:
    """Hide a version, or remove a hidden one for good."""
    _refuse_read_only(state, subject)
    state.existing(subject, Which.ALL)
    found = state.version(subject, version, Which.LIVE if version is None else Which.ALL)
    label = f"Subject '{subject}' Version {found.version}"
    if permanent and not found.deleted:
        raise RegistryNotFound(
            Code.VERSION_NOT_SOFT_DELETED, f"{label} was not deleted first before being permanently deleted"
        )
    if found.deleted and not permanent:
        raise RegistryNotFound(
            Code.VERSION_SOFT_DELETED, f"{label} was soft deleted. Set permanent=true to delete permanently"
        )
    return found.version, _removal(found, permanent)


def decide_delete_subject(state: RegistryState, subject: str, permanent: bool) -> Decision[tuple[int, ...]]:
    """Hide all versions of a subject and drop its settings, or remove a hidden subject for good."""
    _refuse_read_only(state, subject)
    every = state.existing(subject, Which.ALL)
    live = state.versions_of(subject)
    if permanent and live:
        raise RegistryNotFound(
            Code.SUBJECT_NOT_SOFT_DELETED,
            f"Subject '{subject}' was not deleted first before being permanently deleted",
        )
    if not (permanent or live):
        raise RegistryNotFound(
            Code.SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    changes: dict[str, str | None] = {}
    for one in every if permanent else live:
        changes.update(_removal(one, permanent))
    if subject in state.levels:
        changes[level_key(subject)] = None
    if subject in state.modes:
        changes[mode_key(subject)] = None
    return tuple(one.version for one in (every if permanent else live)), changes


def _removal(one: Registered, permanent: bool) -> Mapping[str, str | None]:
    value = None if permanent else schema_value(replace(one, deleted=True))
    return {schema_key(one.subject, one.version): value}


def decide_level(state: RegistryState, subject: str | None, level: Level | None) -> Decision[Level]:
    """Set a level, or drop it with None; answers the level that was set or dropped."""
    if subject is not None:
        refuse_bad_subject(subject)
    _refuse_read_only(state, subject)
    if level is not None:
        # Not `own_level`: an entry that cannot be read is repaired by setting it again.
        same = state.levels.get(subject) is level
        return level, {} if same else {level_key(subject): level_value(level)}
    own = state.own_level(subject)
    if own is None and subject is not None:
        raise RegistryNotFound(
            Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' has no compatibility of its own."
        )
    return own or Level.BACKWARD, {level_key(subject): None} if own else {}


def decide_mode(
    state: RegistryState, subject: str | None, mode: Mode | None, force: bool = False
) -> Decision[Mode]:
    """Set a mode, or drop it with None; answers the mode that was set or dropped.

    IMPORT on top of existing schemas wants `force`: imported ids could clash with them.
    """
    # Not `own_mode`: an entry that cannot be read is repaired by setting it again.
    own = state.modes.get(subject)
    if mode is None:
        if own is None and subject is not None:
            raise RegistryNotFound(Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' has no mode of its own.")
        return own or Mode.READWRITE, {mode_key(subject): None} if own else {}
    if subject is not None:
        refuse_bad_subject(subject)
    if mode is Mode.READONLY_OVERRIDE and subject is not None:
        raise RegistryRefused(
            Code.INVALID_MODE, "READONLY_OVERRIDE is a global mode; use READONLY for a subject"
        )
    if mode is Mode.IMPORT and own is not Mode.IMPORT and not force:
        live = state.subjects() if subject is None else state.versions_of(subject)
        if live:
            raise _not_permitted(
                "Cannot import since found existing subjects; force=true does it all the same"
            )
    return mode, {} if own is mode else {mode_key(subject): mode_value(mode)}


def refuse_bad_subject(subject: str) -> None:
    """A subject is any text without control characters."""
    if not subject or not subject.isprintable():
        raise RegistryRefused(
            Code.INVALID_SUBJECT, f"The specified subject {subject!r} is empty or has unprintable characters"
        )


def _refuse_read_only(state: RegistryState, subject: str | None) -> Mode:
    mode = state.mode(subject)
    if mode in _READ_ONLY:
        place = "The registry" if subject is None else f"Subject '{subject}'"
        raise _not_permitted(f"{place} is in read-only mode ({mode})")
    return mode


def _not_permitted(message: str) -> RegistryRefused:
    return RegistryRefused(Code.NOT_PERMITTED, message, hint="The mode says what may be written: GET /mode.")


def _id_mismatch(asked: int | None, known: int) -> RegistryRefused:
    return RegistryRefused(Code.ID_DOES_NOT_MATCH, f"The schema already has the id {known}, not {asked}")

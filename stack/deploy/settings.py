"""Reads job.toml and the Avro files that it names: how a job shall run and what its stores hold."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack.errors import BadConfig, BadInput
from stack.feeds.avro.schema import parse_avro
from stack.model.job import (
    Guarantee,
    JobSettings,
    KeyCodec,
    OnError,
    StoreSpec,
    ValueCodec,
    store_name_fault,
)
from stack.model.tables import (
    Parse,
    duration_ms,
    flag,
    one_of,
    plain_text,
    refuse_faults,
    section,
    size_bytes,
    suggest,
    take,
    whole,
)

SETTINGS_FILE = "job.toml"
MAX_CONTAINERS = 1_000
# A third of the limit of a transaction: no commit, and no single record, may take longer.
LONGEST_COMMIT_MS = 15_000
_HINT = "Correct them and deploy again; docs/jobs.md lists every key."

_KEYS: dict[str, Parse] = {
    "containers": whole(1, MAX_CONTAINERS),
    "guarantee": one_of(tuple(Guarantee)),
    "commit_min_ms": whole(1, LONGEST_COMMIT_MS),
    "commit_max_ms": whole(1, LONGEST_COMMIT_MS),
    "horizon": duration_ms("1s", "3650d"),
    "memory": size_bytes("64MB", "1TB"),
    "cache": size_bytes("1MB", "1TB"),
    "record_limit": duration_ms("100ms", "15s"),
    "deploy_limit": duration_ms("1s", "1d"),
    "on_error": one_of(tuple(OnError)),
    "retries": whole(0, 1_000),
    "retry_backoff": duration_ms("1ms", "15s"),
    "metrics": flag,
    "align": duration_ms("1s", "1d"),
}
_STORE_KEYS: dict[str, Parse] = {
    "key": one_of(tuple(KeyCodec)),
    "value": one_of(tuple(ValueCodec)),
    "schema": plain_text,
}
_INPUT_KEYS: dict[str, Parse] = {"on_error": one_of(tuple(OnError))}
_TABLES = ("stores", "inputs")
# Keys that people write with their unit but that are kept in another.
_RENAMED = {
    "horizon": "horizon_ms",
    "memory": "memory_bytes",
    "cache": "cache_bytes",
    "record_limit": "record_limit_ms",
    "deploy_limit": "deploy_limit_ms",
    "retry_backoff": "retry_backoff_ms",
    "align": "align_ms",
}


@dataclass(frozen=True)
class JobFile:
    """What job.toml says: settings, and the stores that it describes."""

    settings: JobSettings = field(default_factory=JobSettings)
    stores: Mapping[str, StoreSpec] = field(default_factory=dict)


def read_job_file(folder: Path) -> JobFile:
    """Check the whole job.toml of a folder and report all faults at once; without one, the defaults."""
    file = folder / SETTINGS_FILE
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return JobFile()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{file} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{file} is not TOML: {error}", hint="Check that line.") from None
    return job_file_of(tree, folder, str(file))


def job_file_of(tree: Mapping[str, Any], folder: Path, where: str) -> JobFile:
    """The same for what stands in a job.toml; files that it names lie in the folder."""
    faults: list[str] = []
    taken = take(tree, _KEYS, "", faults, _TABLES)
    stores = {
        name: store
        for name, table in section(tree, "stores", faults).items()
        if (store := _store(folder, name, table, faults)) is not None
    }
    settings = _settings(taken, _inputs(section(tree, "inputs", faults), faults))
    faults += _contradictions(settings)
    refuse_faults(where, faults, _HINT)
    return JobFile(settings, stores)


def stores_of(file: JobFile, named: Sequence[str]) -> tuple[tuple[StoreSpec, ...], list[str]]:
    """The stores that the code names, as job.toml describes them or by default; and what does not fit."""
    stores = tuple(file.stores.get(name) or StoreSpec(name) for name in named)
    faults = [
        f"{SETTINGS_FILE}, stores.{name}: no task of the code names this store"
        + (suggest(name, named) if named else '; name it: @job.task(..., store="…")')
        for name in file.stores
        if name not in named
    ]
    return stores, faults


def input_faults(file: JobFile, feeds: Sequence[str]) -> list[str]:
    """Tables of inputs that the code does not read."""
    return [
        f"{SETTINGS_FILE}, inputs.{name}: the code does not read this feed{suggest(name, feeds)}"
        for name in file.settings.inputs_on_error
        if name not in feeds
    ]


def _inputs(tables: Mapping[str, Any], faults: list[str]) -> dict[str, OnError]:
    """What becomes of errors, by input; a table that says nothing of it is a slip."""
    found = {}
    for name, table in tables.items():
        place = f"inputs.{name}"
        if not isinstance(table, dict):
            faults.append(f"{place}: must be a table, written [{place}]")
        elif not table:
            faults.append(f'{place}: says nothing; write on_error = "dead-letter", or take it out')
        elif "on_error" in (taken := take(table, _INPUT_KEYS, f"{place}.", faults)):
            found[name] = OnError(taken["on_error"])
    return found


def _settings(taken: Mapping[str, Any], inputs_on_error: Mapping[str, OnError]) -> JobSettings:
    values = {_RENAMED.get(key, key): value for key, value in taken.items()}
    values["inputs_on_error"] = inputs_on_error
    for key, kind in (("guarantee", Guarantee), ("on_error", OnError)):
        if key in values:
            values[key] = kind(values[key])
    if "cache_bytes" not in values and "memory_bytes" in values:
        values["cache_bytes"] = min(JobSettings().cache_bytes, values["memory_bytes"] // 4)
    return JobSettings(**values)


def _contradictions(settings: JobSettings) -> list[str]:
    """What is well-formed key by key but does not fit together."""
    faults = []
    if settings.commit_min_ms > settings.commit_max_ms:
        faults.append(
            f"commit_min_ms: {settings.commit_min_ms:,} is longer than commit_max_ms, "
            f"{settings.commit_max_ms:,}"
        )
    if settings.cache_bytes * 2 > settings.memory_bytes:
        faults.append("cache: must be at most half of memory: the code and the records need room, too")
    return faults


def _store(folder: Path, name: str, table: Any, faults: list[str]) -> StoreSpec | None:
    place, before = f"stores.{name}", len(faults)
    fault = store_name_fault(name)
    if fault:
        faults.append(f"{place}: the name does not do: {fault}")
    if not isinstance(table, dict):
        faults.append(f"{place}: must be a table, written [{place}]")
        return None
    taken = take(table, _STORE_KEYS, f"{place}.", faults)
    is_avro = taken.get("value") == ValueCodec.AVRO
    text = None
    if "schema" in taken and not is_avro:
        faults.append(f'{place}.schema: only a store of Avro values has it; write value = "avro"')
    elif "schema" in taken:
        text = _schema(folder, taken["schema"], place, faults)
    elif is_avro and "schema" not in table:
        faults.append(f'{place}.schema: must be given: the file of the values\' schema, such as "count.avsc"')
    if len(faults) > before:
        return None
    return StoreSpec(
        name,
        KeyCodec(taken.get("key", StoreSpec(name).key)),
        ValueCodec(taken.get("value", StoreSpec(name).value)),
        text,
    )


def _schema(folder: Path, name: str, place: str, faults: list[str]) -> str | None:
    """The compact text of a schema: how the file is spaced is no change of the store."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        faults.append(f"{place}.schema: {name} lies outside the job's folder")
        return None
    try:
        schema = parse_avro(file.read_text(encoding="utf-8"), where=name)
    except FileNotFoundError:
        faults.append(f"{place}.schema: there is no file {file}")
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{place}.schema: {file} cannot be read: {error}")
    except BadInput as error:
        faults.append(f"{place}.schema: {error.message}")
    else:
        if isinstance(schema.tree, dict) and schema.tree.get("type") == "record":
            return schema.text
        faults.append(f"{place}.schema: {name} must be a record: fields can be added to it later")
    return None

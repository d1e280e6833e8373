"""The first story: from nothing to feeds that are filled, read and evolved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import click

from ops.cluster.temporary import temporary_folder
from ops.demo.story import Story, head
from stack.settings import Settings, read_endpoints

_RECORDS = 20_000


def run() -> None:
    """Tell the story; every command is run for real and shown as it would be typed."""
    begun = time.monotonic()
    with temporary_folder("demo") as settings:
        demo = _Feeds(settings)
        head("A real Kafka, a real ZooKeeper and a schema registry, on this machine")
        demo.stack("up")
        head("Feeds are declared in schemas/catalog.toml; the plan comes first")
        demo.stack("feeds apply")
        demo.stack("feeds graph")
        head(f"{_RECORDS:,} synthetic page views that fit the schema")
        demo.stack(f"feeds generate page-views --count {_RECORDS} --keys 500 --skew 1.1 --seed 7")
        demo.stack("feeds tail page-views --from oldest --where 'load > 100' --limit 3")
        head("A bad record is refused, with the line and the field")
        demo.produce('{"user": "ada", "page": "/", "ms": "tomorrow", "load": 1.5}')
        head("The schema evolves: a field without a default would break readers, one with a default does not")
        demo.evolve({"name": "country", "type": "string"})
        demo.stack("schemas check page-views", expect=1)
        demo.evolve({"name": "country", "type": "string", "default": "unknown"})
        demo.stack("feeds apply")
        demo.stack("feeds tail page-views --from oldest --limit 1")
        head("Any Avro client of Kafka finds the schemas at the registry")
        endpoints = read_endpoints(settings)
        demo.shell(f"curl -s {endpoints.http}/subjects/page-views-value/versions", _get)
        demo.stack("feeds list")
        demo.stack("status")
        head("Down again; nothing stays behind")
        demo.stack("down")
    click.echo(f"\nThat was all real, in {time.monotonic() - begun:.0f} s. Next: `stack up`, and README.md.")


def _get(url: str) -> str:
    """What curl would print, on machines that have none."""
    import urllib.request

    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
        return str(answer.read().decode())


class _Feeds(Story):
    """The same, with what happens to the schema of the page views."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._schema = settings.schemas / "page-view.avsc"
        self._original = json.loads(self._schema.read_text(encoding="utf-8"))

    def produce(self, record: str) -> None:
        self.stack("feeds produce page-views", expect=1, given=record)

    def shell(self, shown: str, run: Callable[[str], str]) -> None:
        self.show(shown)
        click.echo(run(shown.rpartition(" ")[2]))

    def evolve(self, field: dict[str, str]) -> None:
        """Write the schema file with one more field."""
        changed = {**self._original, "fields": [*self._original["fields"], field]}
        self._schema.write_text(json.dumps(changed, indent=2), encoding="utf-8")
        click.secho(f"(schemas/page-view.avsc gets {json.dumps(field)})", dim=True)

"""Rewinds that would bring back what nobody can read any more: refused before anything changes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from stack import BadInput, Stack
from stack.deploy.jobs import jobs_feed
from stack.feeds.registry.state import Mode
from stack.model.feed import value_subject
from stack.model.job import jobs_name
from stack.model.startpoint import AtAnnotation
from stack.offsets.naming import name_point, where_it_stands
from tests.cluster.conftest import apply
from tests.cluster.job_world import CLICK, JobWorld
from tests.cluster.test_rewind import TABLE, Rewinds
from tests.fleets import HandFleet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
CODE = """
from stack import Feed, Job

clicks, tallies = Feed("clicks"), Feed("tallies")
job = Job("count")


@job.task(clicks, store="counts")
def count(click, ctx):
    ctx.state[click["user"]] = {value}
    ctx.emit(tallies, {{"user": click["user"], "count": 1}})
"""
WITHOUT = """
from stack import Feed, Job

job = Job("count")


@job.task(Feed("clicks"))
def count(click, ctx):
    ctx.emit("tallies", {"user": click["user"], "count": 1})
"""
QUICK = "commit_min_ms = 10\ncommit_max_ms = 50\n"


def coded(value: str, more: str = "") -> str:
    return f'{QUICK}{more}[stores.counts]\nkey = "str"\nvalue = "{value}"\n'


def schema(kind: str) -> str:
    return json.dumps({"type": "record", "name": "Count", "fields": [{"name": "n", "type": kind}]})


@pytest.fixture
def rewinds(stack: Stack) -> Iterator[Rewinds]:
    world = JobWorld(stack, code=CODE.format(value=1), derived=TABLE, settings=coded("int"))
    with HandFleet(stack, world.folder) as fleet:
        yield Rewinds(world, fleet)


def work(rewinds: Rewinds, clicks: int, name: str | None = None) -> None:
    """Read some clicks, and give the point after them a name."""
    rewinds.click(clicks)
    rewinds.run()
    rewinds.await_read()
    rewinds.stop()
    if name is not None:
        stand = where_it_stands(rewinds.stack, rewinds.fleet.spec, is_still=True)
        name_point(rewinds.stack, rewinds.fleet.spec, stand, name, {}, by="me")


def redeploy(rewinds: Rewinds, code: str, settings: str) -> None:
    rewinds.world.write_job(code, settings)
    rewinds.fleet.redeploy(rewinds.world.folder)


def refused(rewinds: Rewinds, to: str) -> BadInput:
    """What a rewind is refused with; nothing was changed by asking."""
    before = rewinds.world.checkpoints()
    with pytest.raises(BadInput) as told:
        rewinds.rewind(AtAnnotation(to))
    assert rewinds.world.checkpoints() == before
    assert jobs_feed(rewinds.stack).get("count").rewind is None
    return told.value


def test_records_whose_schema_was_deleted_for_good(rewinds: Rewinds) -> None:
    stack, subject = rewinds.stack, value_subject("clicks")
    first = stack.registry.latest(subject)
    work(rewinds, 30, "early")
    work(rewinds, 20, "late")
    new = CLICK.replace("]}", ',{"name":"city","type":"string","default":""}]}')
    (stack.settings.schemas / "click.avsc").write_text(new)
    apply(stack)
    work(rewinds, 25)
    # Hidden is not gone: records that were written with it are still read.
    stack.registry.delete_version(subject, 1)
    rewinds.plan(AtAnnotation("early"))
    stack.registry.delete_version(subject, 1, permanent=True)
    told = refused(rewinds, "early")
    assert "20 records of feed 'clicks' that the job would read again cannot be read any more" in told.message
    assert "which the registry does not have" in told.message
    assert "mode IMPORT" in told.hint
    # Behind them nothing is lost, and with the schema put back nothing at all.
    rewinds.plan(AtAnnotation("late"))
    stack.registry.set_mode(subject, Mode.IMPORT, force=True)
    stack.registry.register(subject, first.schema, schema_id=first.id, version=first.version)
    stack.registry.set_mode(subject, None)
    rewinds.rewind(AtAnnotation("early"))
    rewinds.run()
    rewinds.await_read()


def test_records_that_a_schema_which_was_pushed_through_does_not_understand(stack: Stack) -> None:
    world = JobWorld(
        stack,
        code=CODE.format(value=1),
        derived=TABLE,
        settings=coded("int", 'on_error = "skip"\n'),
    )
    file = stack.settings.schemas / "catalog.toml"
    file.write_text(file.read_text().replace('key = "user"\n', 'key = "user"\ncompatibility = "NONE"\n', 1))
    apply(stack)
    with HandFleet(stack, world.folder) as fleet:
        rewinds = Rewinds(world, fleet)
        work(rewinds, 30, "early")
        work(rewinds, 20, "late")
        (stack.settings.schemas / "click.avsc").write_text(
            CLICK.replace("]}", ',{"name":"x","type":"string"}]}')
        )
        apply(stack)
        told = refused(rewinds, "early")
        assert "20 records of feed 'clicks'" in told.message
        assert "Register a schema of the feed that reads them" in told.hint
        assert "--best-effort leaves them to skip" in told.hint


def test_a_store_whose_values_are_coded_otherwise(rewinds: Rewinds) -> None:
    work(rewinds, 30, "then")
    work(rewinds, 30)
    redeploy(rewinds, WITHOUT, QUICK)
    work(rewinds, 5)
    # Eight bytes of a number may well be text: only what was written down tells.
    redeploy(rewinds, CODE.format(value='"x"'), coded("str"))
    told = refused(rewinds, "then")
    assert "store 'counts': its values were int at that point" in told.message
    assert "--state keep" in told.hint
    # Where nobody has written it down, the values themselves tell what they can.
    redeploy(rewinds, CODE.format(value='{"x": 1}'), coded("json"))
    ledger = rewinds.stack.ledger(jobs_name(rewinds.stack.settings.name))
    ledger.update(lambda texts: {key: None for key in texts if key.startswith("version/")})
    told = refused(rewinds, "then")
    assert "what it held at that point cannot be read: key b'user-" in told.message
    redeploy(rewinds, CODE.format(value="7"), coded("int"))
    rewinds.rewind(AtAnnotation("then"))


def test_a_store_whose_schema_does_not_understand_its_values(rewinds: Rewinds) -> None:
    stack = rewinds.stack
    adding = '{"n": click["n"] + ctx.state.get(click["user"], {"n": 0})["n"]}'
    rewinds.world.write_job(
        CODE.format(value=adding).replace('"counts"', '"sums"'),
        _avro_settings(),
    )
    (rewinds.world.folder / "count.avsc").write_text(schema("long"))
    rewinds.fleet.redeploy(rewinds.world.folder)
    work(rewinds, 30, "then")
    work(rewinds, 30)
    redeploy(rewinds, WITHOUT, QUICK)
    work(rewinds, 5)
    subject = value_subject(rewinds.world.changelog.replace("counts", "sums"))
    stack.registry.delete_version(subject, 1)
    (rewinds.world.folder / "count.avsc").write_text(schema("string"))
    redeploy(rewinds, CODE.format(value='{"n": "x"}').replace('"counts"', '"sums"'), _avro_settings())
    told = refused(rewinds, "then")
    assert "store 'sums': what it held at that point cannot be read: key 'user-" in told.message
    # One that only became wider reads them.
    redeploy(rewinds, WITHOUT, QUICK)
    stack.registry.delete_version(subject, None)
    (rewinds.world.folder / "count.avsc").write_text(schema("double"))
    redeploy(rewinds, CODE.format(value='{"n": 1.5}').replace('"counts"', '"sums"'), _avro_settings())
    rewinds.plan(AtAnnotation("then"))


def _avro_settings() -> str:
    return f'{QUICK}[stores.sums]\nkey = "str"\nvalue = "avro"\nschema = "count.avsc"\n'

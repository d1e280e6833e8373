"""The third story: a release with a bug, and a job that goes back to before it, whole."""

from __future__ import annotations

import time

import click

from ops.cluster.temporary import temporary_folder
from ops.demo.counting import JOB, await_that, counts_now, views
from ops.demo.story import Story, head
from stack import Stack

_BEFORE, _AFTER = 20_000, 10_000
_RIGHT = 'view["user"]'
# Some users become others: wrong counts, and keys that should never have been.
_WRONG = '(view["user"].upper() if view["page"].startswith("/p/1") else view["user"])'


def run() -> None:
    """Tell the story; every command is run for real and shown as it would be typed."""
    begun = time.monotonic()
    with temporary_folder("demo") as settings:
        story = Story(settings)
        code = settings.root / "jobs" / JOB / "job.py"
        head("A stack, its feeds, and a job that counts the page views of each user")
        story.stack("up")
        story.stack("feeds apply")
        story.stack(f"feeds generate page-views --count {_BEFORE} --keys 500 --skew 1.1 --seed 7")
        story.stack(f"jobs deploy {code.parent}")
        with Stack.connect(settings) as stack:
            await_that(lambda: sum(counts_now(stack).values()) == _BEFORE, "all counts")
            head("Before a release, the point where the job stands gets a name")
            story.stack(f"offsets annotate {JOB} before-release ticket=OPS-17")
            head("The release has a bug: for some pages it counts under a wrong name")
            right = code.read_text()
            code.write_text(right.replace(_RIGHT, _WRONG))
            story.stack(f"jobs deploy {code.parent}")
            story.stack(f"feeds generate page-views --count {_AFTER} --keys 500 --skew 1.1 --seed 8")
            total = _BEFORE + _AFTER
            await_that(lambda: sum(counts_now(stack).values()) == total, "the counts of the bad release")
            expected, found = views(stack), counts_now(stack)
            off = sum(found.get(user) != number for user, number in expected.items())
            strange = len(found.keys() - expected.keys())
            click.echo(f"wrong: {off} of {len(expected)} users, and {strange} that do not exist")
            head("The code is mended; but what it has written, and what it remembers, is still wrong")
            code.write_text(right)
            story.stack(f"jobs deploy {code.parent}")
            story.stack(f"offsets list {JOB} --limit 3")
            head("So the job goes back, whole: inputs, state and the table. The plan first")
            story.stack(f"rewind {JOB} --to @before-release --plan")
            story.stack(f"rewind {JOB} --to @before-release --yes --reason 'wrong names since the release'")
            head("Every count is right, and what should never have been is gone")
            await_that(lambda: counts_now(stack) == expected, "the right counts")
            found = counts_now(stack)
            click.echo(f"page views {sum(found.values()):,}, users {len(found):,}, wrong 0, left over 0")
        story.stack(f"audit {JOB}")
        head("Down again; nothing stays behind")
        story.stack("down")
    click.echo(f"\nThat was all real, in {time.monotonic() - begun:.0f} s. docs/offsets.md tells the rest.")

"""Jobs as their authors write them: feeds, tasks, stores, hooks, and every mistake told by file and line."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import Feed, Job
from stack.errors import BadConfig
from stack.model.job import InputSpec
from stack.tasks.load import load_job

UNFIT: Any = 7


def handle(value: Any, ctx: Any) -> None:
    """A handler."""


def begin(ctx: Any) -> None:
    """A hook."""


def test_a_feed_is_the_same_object_wherever_it_is_named() -> None:
    views = Feed("page-views")
    assert views is Feed("page-views")
    assert pickle.loads(pickle.dumps(views)) is views  # noqa: S301
    assert copy.deepcopy(views) is views
    assert {views: 1}[Feed("page-views")] == 1
    assert repr(views) == "Feed('page-views')"
    with pytest.raises(AttributeError, match="cannot be set"):
        views.name = "x"


def test_marks_of_inputs_add_up() -> None:
    rates = Feed("rates")
    assert rates.broadcast().spec == InputSpec("rates", broadcast=True)
    assert rates.bootstrap().broadcast().spec == InputSpec("rates", broadcast=True, bootstrap=True)
    assert rates.broadcast().bootstrap() == rates.bootstrap().broadcast()


def test_a_job_collects_handlers_inputs_and_stores_in_order() -> None:
    job = Job("enrich")
    kept = job.task(Feed("views"), Feed("clicks"), stores=("seen", "last_page"))(handle)
    job.task(Feed("rates").broadcast(), store="seen", batch=True)(handle)
    job.open(begin)
    assert kept is handle
    assert [one.feed for one in job.inputs] == ["views", "clicks", "rates"]
    assert job.store_names == ("seen", "last_page")
    assert [one.batch for one in job.handlers] == [False, True]
    assert job.handlers[0].name == "handle"
    assert job.on_open is begin
    assert job.on_close is None


async def never(value: Any, ctx: Any) -> None:
    """Would never run."""


def yields(value: Any, ctx: Any) -> Iterator[Any]:
    yield value


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda _: Feed("Page Views"), "Feed('Page Views'): the name does not do"),
        (lambda _: Feed(UNFIT), "it must be text, got 7"),
        (lambda _: Feed("views.v2"), "versions of a feed"),
        (lambda _: Job("Count Views"), "Job('Count Views'): the name does not do"),
        (lambda _: Job(UNFIT), "it must be text, got 7"),
        (lambda job: job.task(), "a task has no inputs"),
        (lambda job: job.task(handle), "@job.task needs its inputs in brackets"),
        (lambda job: job.task("views"), "an input must be a Feed, got 'views'"),
        (lambda job: job.task(Feed("views"), store="Counts"), "store 'Counts': the name does not do"),
        (lambda job: job.task(Feed("views"), store=3), "it must be text, got 3"),
        (lambda job: job.task(Feed("views"), stores="counts"), "stores='counts' must be a list"),
        (lambda job: job.task(Feed("views"), stores=("a", "a")), "store 'a' is named twice"),
        (lambda job: job.task(Feed("views"), store="a", stores=("b",)), "store='a' and stores=('b',)"),
        (lambda job: job.task(Feed("views"), Feed("views"))(handle), "'views' is taken twice, by handle"),
        (lambda job: job.task(Feed("old"))(handle), "'old' is taken twice, by first and by handle"),
        (lambda job: job.task(Feed("views"))(7), "7 is not a function"),
        (lambda job: job.task(Feed("views"))(dict), "dict is not a function"),
        (lambda job: job.task(Feed("views"))(begin), "begin must take two arguments"),
        (lambda job: job.task(Feed("views"))(never), "never is async"),
        (lambda job: job.task(Feed("views"))(yields), "yields has a yield"),
        (lambda job: job.open(handle), "handle must take one argument"),
        (lambda job: [job.close(begin), job.close(begin)], "two @job.close hooks: begin and begin"),
    ],
)
def test_mistakes_in_a_declaration_are_named(declare: Callable[[Job], object], says: str) -> None:
    job = Job("count")

    @job.task(Feed("old"))
    def first(value: Any, ctx: Any) -> None: ...

    with pytest.raises(BadConfig) as caught:
        declare(job)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Writes job.py and loads it, leaving no trace in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = dict(sys.modules)
    monkeypatch.setattr(sys, "modules", modules)

    def run(code: str, name: str | None = None, **others: str) -> Job:
        (tmp_path / "job.py").write_text(code)
        for module, text in others.items():
            (tmp_path / f"{module}.py").write_text(text)
        return load_job(tmp_path, name)

    return run


BEGIN = 'from stack import Feed, Job\njob = Job("count")\n'
TASK = "@job.task(Feed('views'))\ndef count(view, ctx): ...\n"


def test_a_job_is_loaded_with_its_modules_and_shipped_packages(
    load: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "shipped_for_test.py").write_text("NAME = 'views'\n")
    code = "from shipped_for_test import NAME\nfrom own_for_test import job\n" + TASK.replace(
        "'views'", "NAME"
    )
    job = load("from stack import Feed\n" + code, "count", own_for_test=BEGIN)
    assert [one.feed for one in job.inputs] == ["views"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1\n", "job.py declares no job"),
        (BEGIN, "job 'count' has no task"),
        (BEGIN + TASK + 'more = Job("more")\n', "job.py declares 2 jobs: 'count' and 'more'"),
        ("def f(:\n", "job.py, line 1 is not Python: invalid syntax: def f(:"),
        ("import no_such_thing\n", "needs the module 'no_such_thing', which is not there (job.py, line 1"),
        (
            "def f():\n    return 1 / 0\n\nf()\n",
            "ZeroDivisionError: division by zero (job.py, line 2: return",
        ),
        ("import json\njson.loads('{')\n", "(job.py, line 2: json.loads('{'))"),
        ("import sys\nsys.exit(3)\n", "sys.exit(3) (job.py, line 2"),
        (BEGIN + "Feed('No')\n", "Feed('No'): the name does not do"),
    ],
)
def test_what_is_wrong_with_the_code_is_told_by_file_and_line(
    load: Callable[..., Job], code: str, says: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        load(code)
    assert says in caught.value.message
    assert caught.value.hint


def test_the_fault_lies_where_the_users_own_code_was_last(load: Callable[..., Job]) -> None:
    with pytest.raises(BadConfig, match=r"\(deeper_for_test.py, line 2: raise OSError"):
        load("import deeper_for_test\n", deeper_for_test="\nraise OSError('gone')\n")


def test_a_missing_package_points_to_requirements(load: Callable[..., Job]) -> None:
    with pytest.raises(BadConfig) as caught:
        load("import no_such_thing\n")
    assert "requirements.txt" in caught.value.hint


def test_code_of_another_job_is_refused(load: Callable[..., Job]) -> None:
    with pytest.raises(BadConfig, match="holds the job 'count', not 'other'"):
        load(BEGIN + TASK, "other")


def test_a_folder_without_code_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"holds no job\.py"):
        load_job(tmp_path)

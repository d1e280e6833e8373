"""Code is imported in a process of its own: whatever it does there, we get a declaration or a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stack.deploy.inspect import Declared, DeclaredHandler, inspect
from stack.errors import BadConfig
from stack.model.job import InputSpec
from tests.clusters import wait_for

GOOD = """
from stack import Feed, Job
job = Job("count")
@job.task(Feed("views"), Feed("rates").broadcast(), store="counts")
def count(view, ctx): ...
@job.task(Feed("clicks"), stores=("counts", "last"), batch=True)
def click(batch, ctx): ...
"""


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Declared]:
    def run(code: str, limit_s: float = 20) -> Declared:
        (tmp_path / "job.py").write_text(code)
        return inspect(tmp_path, limit_s)

    return run


def test_a_declaration_comes_back_whole_whatever_the_code_prints(look: Callable[..., Declared]) -> None:
    noise = "import os\nprint('{\"name\": \"not me\"}', flush=True)\nos.system('echo garbage')\n"
    found = look(noise + GOOD)
    assert found == Declared(
        "count",
        (
            DeclaredHandler(
                "count", (InputSpec("views"), InputSpec("rates", broadcast=True)), ("counts",), False
            ),
            DeclaredHandler("click", (InputSpec("clicks"),), ("counts", "last"), True),
        ),
    )
    assert found.store_names == ("counts", "last")
    assert [one.feed for one in found.inputs] == ["views", "rates", "clicks"]


@pytest.mark.parametrize(
    ("code", "says", "hint"),
    [
        ("raise ValueError('no')\n", "ValueError: no (job.py, line 1", "python job.py"),
        ("import sys\nsys.exit()\n", "sys.exit(None) (job.py, line 2", "Only declare"),
        (
            "import os\nos._exit(3)\n",
            "ends the process while it is imported, with exit code 3",
            "Only declare",
        ),
        ("import os\nos.abort()\n", "by signal SIGABRT", "Only declare"),
        ("import nothing_there\n", "needs the module 'nothing_there'", "requirements.txt"),
        ("job = (\n", "is not Python", "Correct that line"),
        ("import os\nos.write(1, b'{\"name\"')\nos._exit(0)\n", "with exit code 0", "Only declare"),
    ],
)
def test_code_that_fails_is_told(look: Callable[..., Declared], code: str, says: str, hint: str) -> None:
    with pytest.raises(BadConfig) as caught:
        look(code)
    assert says in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass\n",
        "while True: print('x' * 10_000)\n",
        "import os, time\nfor fd in (0, 1, 2): os.close(fd)\ntime.sleep(99)\n",
    ],
)
def test_code_that_never_ends_is_ended(look: Callable[..., Declared], code: str) -> None:
    with pytest.raises(BadConfig, match="did not finish importing within 3 s") as caught:
        look(code, limit_s=3)
    assert "Move work out of module level" in caught.value.hint


def test_nothing_that_the_code_started_stays(look: Callable[..., Declared], tmp_path: Path) -> None:
    code = f"""
import subprocess, threading, time
child = subprocess.Popen(["sleep", "98"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
threading.Thread(target=time.sleep, args=(98,)).start()
"""
    assert look(code + GOOD).name == "count"
    pid = int((tmp_path / "pid").read_text())

    def is_gone() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    # The signal was sent; on a busy machine its work takes a moment.
    wait_for(is_gone, "the end of what the code has started", 10)

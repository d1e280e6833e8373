"""Imports code that users wrote, and finds the Job in it; a fault is told by file and line."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import traceback
from pathlib import Path
from types import ModuleType

from stack.errors import BadConfig, FeedstackError
from stack.tasks.declare import Job

JOB_FILE = "job.py"
# Where the packages of requirements.txt are shipped, inside the packed code.
SITE_FOLDER = "site"


def load_job(folder: Path, name: str | None = None) -> Job:
    """The job that `job.py` in a folder declares; BadConfig tells what is wrong with it.

    The folder, and the packages shipped with it, come first on the path of this process and stay there: a
    process loads one job.
    """
    folder = folder.absolute()
    file = folder / JOB_FILE
    if not file.is_file():
        raise BadConfig(
            f"{folder} holds no {JOB_FILE}",
            hint=f"Name the folder of a job: it holds {JOB_FILE} and job.toml.",
        )
    sys.path[:0] = [str(folder), str(folder / SITE_FOLDER)]
    job = _only_job(import_file(file, "job", folder))
    refuse_empty(job)
    if name is not None and job.name != name:
        raise BadConfig(
            f"{JOB_FILE} holds the job {job.name!r}, not {name!r}",
            hint="The code is not the one that was deployed under this name; deploy it again.",
        )
    return job


def refuse_empty(job: Job) -> None:
    """A job without a task has nothing to do."""
    if not job.handlers:
        raise BadConfig(
            f"job {job.name!r} has no task",
            hint="Write @job.task(Feed(...)) above the function that does it.",
        )


def import_file(file: Path, name: str, folder: Path) -> ModuleType:
    """The module in a file, known by a name; of a fault its place among the files of a folder is told."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadConfig(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    # Also SystemExit, and whatever else user code can raise.
    except BaseException as error:
        raise _told(error, file.name, folder) from None
    return module


def _only_job(module: ModuleType) -> Job:
    jobs = {id(one): one for one in vars(module).values() if isinstance(one, Job)}
    if not jobs:
        raise BadConfig(
            f"{JOB_FILE} declares no job", hint='It needs a Job of its own: job = Job("count-views").'
        )
    if len(jobs) > 1:
        names = " and ".join(repr(one.name) for one in jobs.values())
        raise BadConfig(
            f"{JOB_FILE} declares {len(jobs)} jobs: {names}",
            hint="One folder holds one job: move the others to folders of their own.",
        )
    return next(iter(jobs.values()))


def _told(error: BaseException, name: str, folder: Path) -> BadConfig:
    """An exception of the user's code as a fault that names the place."""
    if isinstance(error, SyntaxError):
        place = f"{_short(error.filename or name, folder)}, line {error.lineno}"
        text = f": {error.text.strip()}" if error.text else ""
        return BadConfig(f"{place} is not Python: {error.msg}{text}", hint="Correct that line.")
    place = place_of(error, folder) or f"in {name}"
    if isinstance(error, FeedstackError):
        return BadConfig(f"{error.message} ({place})", hint=error.hint)
    if isinstance(error, SystemExit):
        return BadConfig(
            f"{name} ends the process while it is imported: sys.exit({error.code!r}) ({place})",
            hint="Only declare at module level; leave the process to the stack.",
        )
    if isinstance(error, ModuleNotFoundError):
        return BadConfig(
            f"{name} needs the module {error.name!r}, which is not there ({place})",
            hint="Add its package to requirements.txt beside job.py: it is shipped with the code. "
            "A module of your own lies in the same folder.",
        )
    said = traceback.format_exception_only(error)[-1].strip()
    return BadConfig(
        f"{name} fails while it is imported: {said} ({place})",
        hint=f"Run `python {name}` in that folder to see the whole story.",
    )


def place_of(error: BaseException, folder: Path) -> str:
    """The last line of the user's own files on the way to the exception; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if _is_own(Path(one.filename), folder)]
    if not own:
        return ""
    last = own[-1]
    text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    return f"{_short(last.filename, folder)}, line {last.lineno}" + (f": {text}" if text else "")


def _is_own(file: Path, folder: Path) -> bool:
    return file.is_relative_to(folder) and not file.is_relative_to(folder / SITE_FOLDER)


def _short(filename: str, folder: Path) -> str:
    try:
        return str(Path(filename).relative_to(folder))
    except ValueError:
        return filename

"""The user's invariant: `check(outputs, inputs)` in a file, run in a process of its own.

`python -m ops.chaos.invariant ARGUMENTS` answers what the check has found, or what is wrong with it, as JSON.
Without feeds in the arguments it only looks at the file.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.chaos.verdict import Finding, Kind
from stack.connection import Stack
from stack.deploy.apart import answer_apart, run_apart
from stack.errors import BadConfig, FeedstackError
from stack.model.record import Record
from stack.model.startpoint import Latest, Oldest
from stack.tasks.load import import_file, place_of

CHECK_LIMIT_S = 120.0
_LOOK_LIMIT_S = 20.0
_MODULE = "feedstack_invariant"
_CHECK = "check"
_MOST_TOLD = 100
_MOST_CHARACTERS = 1_000
_HOW = "Say what is wrong by `assert`, by `yield`, or by a list of sentences that it returns."


@dataclass(frozen=True)
class Arguments:
    """What the child is told: the file, the job's folder, and where to read which feeds."""

    file: str
    folder: str
    config: str = ""
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


class Feeds:
    """All committed records of some feeds; every loop reads them anew, as it goes on."""

    def __init__(self, stack: Stack, names: Sequence[str]) -> None:
        self._stack = stack
        self.names = tuple(names)

    def __iter__(self) -> Iterator[Record]:
        for name in self.names:
            with self._stack.reader(name) as reader:
                reader.seek(Oldest(), until=Latest())
                yield from reader.records()

    def __getitem__(self, name: str) -> Feeds:
        if name not in self.names:
            raise KeyError(f"there is no feed {name!r} here, but {', '.join(self.names) or 'none'}")
        return Feeds(self._stack, [name])


def examine(file: Path, folder: Path, limit_s: float = _LOOK_LIMIT_S) -> None:
    """BadConfig unless the file holds a function `check` that takes outputs and inputs."""
    _ask(Arguments(str(file.absolute()), str(folder.absolute())), file, limit_s)


def check(
    stack: Stack,
    file: Path,
    folder: Path,
    *,
    outputs: Sequence[str],
    inputs: Sequence[str],
    limit_s: float = CHECK_LIMIT_S,
) -> list[Finding]:
    """What the check finds in the feeds of a stack; BadConfig if it is at fault itself."""
    config = str(stack.settings.file)
    asked = Arguments(str(file.absolute()), str(folder.absolute()), config, tuple(outputs), tuple(inputs))
    tree = _ask(asked, file, limit_s)
    findings = [Finding(Kind.INVARIANT, "", "", said) for said in tree["said"]]
    if tree["more"]:
        findings.append(Finding(Kind.INVARIANT, "", "", f"and {tree['more']:,} more", tree["more"]))
    return findings


def _ask(asked: Arguments, file: Path, limit_s: float) -> dict[str, Any]:
    said = run_apart(__name__, [json.dumps(asdict(asked))], limit_s)
    if not said.in_time:
        what = "did not come to its end" if asked.config else "did not finish importing"
        hint = "Does it wait for something, or loop without end?"
        raise BadConfig(f"{file} {what} within {limit_s:.0f} s", hint=hint)
    try:
        return said.tree()
    except ValueError:
        raise BadConfig(
            f"{file} ends the process that it runs in, {said.end()}", hint="Leave the process to the stack."
        ) from None


def _answer(asked: Arguments) -> dict[str, Any]:
    """What the child answers."""
    file, folder = Path(asked.file), Path(asked.folder)
    # Modules of the job, and those beside the file, can be imported.
    sys.path[:0] = list(dict.fromkeys([str(file.parent), str(folder)]))
    function = _function(file)
    if not asked.config:
        return {}
    with Stack.connect(Path(asked.config)) as stack:
        return _outcome(function, file, Feeds(stack, asked.outputs), Feeds(stack, asked.inputs))


def _function(file: Path) -> Callable[..., Any]:
    function = getattr(import_file(file, _MODULE, file.parent), _CHECK, None)
    if not callable(function):
        raise BadConfig(
            f"{file} has no function {_CHECK}", hint=f"Write def {_CHECK}(outputs, inputs): …; docs/chaos.md."
        )
    try:
        inspect.signature(function).bind((), ())
    except TypeError as error:
        raise BadConfig(
            f"{_CHECK} in {file} does not take two arguments: {error}",
            hint=f"Write def {_CHECK}(outputs, inputs): the records that the job wrote, and those it read.",
        ) from None
    return function


def _outcome(function: Callable[..., Any], file: Path, outputs: Feeds, inputs: Feeds) -> dict[str, Any]:
    said: list[str] = []
    count = 0
    try:
        for sentence in _sentences(function(outputs, inputs)):
            count += 1
            if len(said) < _MOST_TOLD:
                said.append(str(sentence)[:_MOST_CHARACTERS])
    except AssertionError as error:
        count += 1
        place = place_of(error, file.parent)
        line = place.partition(":")[0] if str(error) else place
        said.append(": ".join(filter(None, [line, str(error)]))[:_MOST_CHARACTERS])
    except KeyboardInterrupt:
        raise
    # Also SystemExit, and whatever else user code can raise.
    except BaseException as error:
        raise _fault(error, file) from None
    return {"said": said, "more": count - len(said)}


def _sentences(answer: Any) -> Iterable[Any]:
    if answer is None:
        return ()
    if isinstance(answer, str):
        return (answer,)
    if not isinstance(answer, Iterable):
        raise BadConfig(f"{_CHECK} answers {answer!r}, which says nothing", hint=_HOW)
    return answer


def _fault(error: BaseException, file: Path) -> BadConfig:
    if isinstance(error, BadConfig):
        return error
    place = place_of(error, file.parent) or f"in {file.name}"
    if isinstance(error, FeedstackError):
        return BadConfig(f"the check cannot go on: {error.message} ({place})", hint=error.hint)
    told = traceback.format_exception_only(error)[-1].strip()
    return BadConfig(f"the check is at fault itself: {told} ({place})", hint=f"Correct {file}. {_HOW}")


if __name__ == "__main__":
    answer_apart(lambda: _answer(Arguments(**json.loads(sys.argv[1]))))

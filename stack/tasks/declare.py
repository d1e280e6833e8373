"""What a job is made of, as its author writes it: feeds, handlers, stores and hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from stack.errors import BadConfig
from stack.model.feed import name_fault
from stack.model.job import MAIN_STAGE, InputSpec, job_name_fault, store_name_fault

Function = TypeVar("Function", bound=Callable[..., Any])
_HANDLER_SHAPE = "Write it as `def {name}(value, ctx):`."
_HOOK_SHAPE = "Write it as `def {name}(ctx):`."


class Feed:
    """A handle on a feed. The same name is always the same object: what belongs to it is found quickly.

    views = Feed("page-views")
    """

    __slots__ = ("name",)
    _known: ClassVar[dict[str, Feed]] = {}
    name: str

    def __new__(cls, name: str) -> Feed:
        known = cls._known.get(name) if isinstance(name, str) else None
        if known is not None:
            return known
        _refuse_feed_name(name)
        made = super().__new__(cls)
        object.__setattr__(made, "name", name)
        return cls._known.setdefault(name, made)

    def broadcast(self) -> Input:
        """As an input of which every task reads all partitions."""
        return Input(InputSpec(self.name, broadcast=True))

    def bootstrap(self) -> Input:
        """As an input that is read to its end before the first record of any other."""
        return Input(InputSpec(self.name, bootstrap=True))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a feed is only a name: {name!r} cannot be set")

    def __reduce__(self) -> tuple[type[Feed], tuple[str]]:
        return Feed, (self.name,)

    def __repr__(self) -> str:
        return f"Feed({self.name!r})"


@dataclass(frozen=True, slots=True)
class Input:
    """A feed with how it is read; marks add up: `Feed("rates").broadcast().bootstrap()`."""

    spec: InputSpec

    def broadcast(self) -> Input:
        return Input(replace(self.spec, broadcast=True))

    def bootstrap(self) -> Input:
        return Input(replace(self.spec, bootstrap=True))


@dataclass(frozen=True, slots=True)
class Handler:
    """A function of a job, with the feeds whose records it takes and the stores that it names.

    Its first store is what `ctx.state` stands for while it runs. With `batch` it takes Arrow batches.
    """

    function: Callable[[Any, Any], object]
    inputs: tuple[InputSpec, ...]
    stores: tuple[str, ...] = ()
    batch: bool = False
    stage: str = MAIN_STAGE

    @property
    def name(self) -> str:
        return _name_of(self.function)


Hook = Callable[[Any], object]


class Job:
    """A job: handlers that take records of feeds, keep state and write other feeds.

    job = Job("count-views")

    @job.task(views, store="counts")
    def count(view, ctx):
        ...

    All handlers of a stage run in the same tasks, one task for each partition of its inputs: each reaches all
    stores of the stage. Most jobs have one stage. One that must bring records with the same key together that
    come in several partitions writes them to a feed of its own by that key, and reads it in a later stage:

    @job.task(views)
    def by_page(view, ctx):
        ctx.emit(page_visits, view, key=view["page"])

    @job.task(page_visits, stage="count", store="counts")
    def count(visit, ctx):
        ...
    """

    def __init__(self, name: str) -> None:
        fault = job_name_fault(name) if isinstance(name, str) else f"it must be text, got {name!r}"
        if fault:
            raise BadConfig(
                f"Job({name!r}): the name does not do: {fault}", hint='Such as Job("count-views").'
            )
        self.name = name
        self.handlers: tuple[Handler, ...] = ()
        self.on_open: Hook | None = None
        self.on_close: Hook | None = None

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of all handlers, in the order of the code."""
        return tuple(one for handler in self.handlers for one in handler.inputs)

    @property
    def store_names(self) -> tuple[str, ...]:
        """The stores that handlers name, each once, in the order of the code."""
        return tuple(dict.fromkeys(name for handler in self.handlers for name in handler.stores))

    def task(
        self,
        *inputs: Feed | Input,
        store: str | None = None,
        stores: Iterable[str] = (),
        batch: bool = False,
        stage: str = MAIN_STAGE,
    ) -> Callable[[Function], Function]:
        """Make the function below the handler of these feeds: called as `function(value, ctx)`.

        `store` names its state, or `stores` several; `batch=True` hands over Arrow batches. `stage` names
        the step of the job that it belongs to, if that reads what an earlier one writes.
        """
        _refuse_stage_name(self.name, stage)
        specs = tuple(replace(_input_spec(self.name, one), stage=stage) for one in inputs)
        names = _store_names(self.name, store, stores)
        if not specs:
            raise BadConfig(
                f"job {self.name!r}: a task has no inputs",
                hint='Name the feeds that it reads: @job.task(Feed("page-views")).',
            )

        def register(function: Function) -> Function:
            _refuse_function(self.name, function, 2, _HANDLER_SHAPE)
            self._refuse_taken_inputs(specs, _name_of(function))
            self._refuse_taken_stores(names, stage, _name_of(function))
            self.handlers = (*self.handlers, Handler(function, specs, names, bool(batch), stage))
            return function

        return register

    def open(self, function: Function) -> Function:
        """Run the function below, as `function(ctx)`, once per task before its first record."""
        self.on_open = self._hook("open", self.on_open, function)
        return function

    def close(self, function: Function) -> Function:
        """Run the function below, as `function(ctx)`, once per task when it ends in good order."""
        self.on_close = self._hook("close", self.on_close, function)
        return function

    def _hook(self, word: str, before: Hook | None, function: Hook) -> Hook:
        _refuse_function(self.name, function, 1, _HOOK_SHAPE)
        if before is not None:
            raise BadConfig(
                f"job {self.name!r} has two @job.{word} hooks: {_name_of(before)} and {_name_of(function)}",
                hint="Make one of them call the other.",
            )
        return function

    def _refuse_taken_inputs(self, specs: tuple[InputSpec, ...], name: str) -> None:
        """A record goes to one handler: which, must be clear from its feed."""
        takers = {one.feed: handler.name for handler in self.handlers for one in handler.inputs}
        feeds = [one.feed for one in specs]
        for feed in feeds:
            if feed in takers or feeds.count(feed) > 1:
                takes = f"{takers[feed]} and by {name}" if feed in takers else f"{name} itself"
                raise BadConfig(
                    f"job {self.name!r}: feed {feed!r} is taken twice, by {takes}",
                    hint="Each feed is the input of exactly one handler; call one function from the other.",
                )

    def _refuse_taken_stores(self, names: tuple[str, ...], stage: str, name: str) -> None:
        """State lies with the tasks of one stage: those of another have other keys, perhaps elsewhere."""
        for handler in self.handlers:
            for store in names if handler.stage != stage else ():
                if store in handler.stores:
                    raise BadConfig(
                        f"job {self.name!r}: store {store!r} is used in two stages, {handler.stage!r} by "
                        f"{handler.name} and {stage!r} by {name}",
                        hint="Give each stage a store of its own.",
                    )

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


def _refuse_feed_name(name: object) -> None:
    fault = name_fault(name) if isinstance(name, str) else f"it must be text, got {name!r}"
    if fault:
        raise BadConfig(
            f"Feed({name!r}): the name does not do: {fault}",
            hint="Use the name that stands in schemas/catalog.toml.",
        )


def _refuse_stage_name(job: str, stage: object) -> None:
    fault = job_name_fault(stage) if isinstance(stage, str) else f"it must be text, got {stage!r}"
    if fault:
        raise BadConfig(
            f"job {job!r}: stage {stage!r}: the name does not do: {fault}", hint='Such as stage="count".'
        )


def _input_spec(job: str, one: object) -> InputSpec:
    if isinstance(one, Feed):
        return InputSpec(one.name)
    if isinstance(one, Input):
        return one.spec
    if callable(one):
        # `@job.task` without brackets hands the function itself over.
        raise BadConfig(
            f"job {job!r}: @job.task needs its inputs in brackets",
            hint='Write @job.task(Feed("page-views")) above the function.',
        )
    raise BadConfig(
        f"job {job!r}: an input must be a Feed, got {one!r}", hint='Such as @job.task(Feed("page-views")).'
    )


def _store_names(job: str, store: str | None, stores: Iterable[str]) -> tuple[str, ...]:
    if isinstance(stores, str):
        raise BadConfig(
            f"job {job!r}: stores={stores!r} must be a list of names",
            hint=f"For one store write store={stores!r}.",
        )
    several = tuple(stores)
    if store is not None and several:
        raise BadConfig(
            f"job {job!r}: a task has store={store!r} and stores={several!r}",
            hint="Give one of the two; the first of `stores` is ctx.state.",
        )
    names = several if store is None else (store,)
    for name in names:
        fault = store_name_fault(name) if isinstance(name, str) else f"it must be text, got {name!r}"
        if fault:
            raise BadConfig(
                f"job {job!r}: store {name!r}: the name does not do: {fault}",
                hint='Such as store="counts".',
            )
        if names.count(name) > 1:
            raise BadConfig(f"job {job!r}: store {name!r} is named twice", hint="Name each store once.")
    return names


def _refuse_function(job: str, function: object, arguments: int, shape: str) -> None:
    """Find at import what would else fail at the first record, or never be noticed."""
    name = _name_of(function)
    hint = shape.format(name=name if name.isidentifier() else "handle")
    if not callable(function) or isinstance(function, type):
        raise BadConfig(f"job {job!r}: {name} is not a function", hint=hint)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise BadConfig(
            f"job {job!r}: {name} is async: it would be called but never run",
            hint="Write it with plain `def`.",
        )
    if inspect.isgeneratorfunction(function):
        raise BadConfig(
            f"job {job!r}: {name} has a yield: it would be called but never run",
            hint="Write records with ctx.emit(feed, value).",
        )
    try:
        inspect.signature(function).bind(*(None,) * arguments)
    except TypeError:
        wanted = "two arguments, the value and the context" if arguments == 2 else "one argument, the context"
        raise BadConfig(f"job {job!r}: {name} must take {wanted}", hint=hint) from None
    except ValueError:  # a function in C may not tell what it takes
        return


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", None) or repr(function))

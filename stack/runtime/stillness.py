"""Tasks of a container that stand still: because somebody takes a point of the whole job, or because their
stage is drained and those behind it are not yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stack.model.plan import Plan, TaskId
from stack.model.stillness import StillRequest
from stack.runtime.intake import Intake
from stack.runtime.membership import Membership
from stack.runtime.task import Task
from stack.runtime.work import Work


class Stillness:
    """Decides turn by turn who stands still. Used by the container's loop."""

    def __init__(self, stages: Collection[str], membership: Membership, intake: Intake, work: Work) -> None:
        self._order = {stage: number for number, stage in enumerate(stages)}
        self._membership = membership
        self._intake = intake
        self._work = work
        self._request: StillRequest | None = None
        # The request that all who are asked have carried out and committed; empty while they work.
        self._token = ""
        # It is about to go on: reports say so from now on, and the ticket is of the first that does.
        self._is_leaving = False
        self._ticket = 0

    def hold(self, task: Task) -> None:
        """Let a task stand where it is, between two records."""
        if not self._intake.is_held(task.id):
            self._intake.hold(task)
            self._work.drop([task])

    @property
    def is_asked(self) -> bool:
        """Whether there is anything to follow: a request, or one that is no more and was not let go yet."""
        return self._request is not None or self._membership.still_request() is not None

    def follow(self, tasks: Mapping[TaskId, Task], opening: Collection[TaskId], plan: Plan | None) -> bool:
        """Do what is asked for. True if all who shall stand still do: then commit, and `tell`.

        Whoever goes on has said so before: a point is taken only of those whose reports say that they stand.
        """
        wanted = self._membership.still_request()
        if wanted != self._request:
            if self._token and not (wanted is not None and self._is_same(wanted)) and not self._has_left():
                return False
            self._begin(tasks, wanted, plan)
        request = self._request
        if request is None or self._token:
            return False
        concerned = [task for task in tasks.values() if self._concerns(request, task.id)]
        for task in concerned:
            if self._intake.has_read(task, request.ends):
                self.hold(task)
            elif self._intake.is_held(task.id):  # a commit was aborted, and it stands before the ends again
                self._intake.let_go_on(task)
        if any(self._concerns(request, task) for task in opening):
            return False
        return all(self._intake.is_held(task.id) for task in concerned)

    def _concerns(self, request: StillRequest, task: TaskId) -> bool:
        return self._order[task.stage] < request.stages

    def _is_same(self, wanted: StillRequest) -> bool:
        """Whether only more stages are asked for."""
        return self._request is not None and wanted.id == self._request.id

    def _begin(self, tasks: Mapping[TaskId, Task], wanted: StillRequest | None, plan: Plan | None) -> None:
        """Take up another request. Who need not stand still any more goes on."""
        goes_on = self._request is not None and not (wanted is not None and self._is_same(wanted))
        self._request, self._token, self._is_leaving = wanted, "", False
        for task in tasks.values() if goes_on else ():
            if self._intake.is_held(task.id) and not self.rests(task.id, plan):
                self._intake.let_go_on(task)

    def _has_left(self) -> bool:
        """Whether a report has arrived that says no longer that the container stands still."""
        if not self._is_leaving:
            self._is_leaving = True
            self._ticket = self._membership.ask_report()
        return self._membership.is_told(self._ticket)

    def tell(self) -> None:
        """All has been committed: say that the container stands still."""
        if self._request is not None:
            self._token = self._request.token
            self._membership.ask_report()

    @property
    def told(self) -> str:
        """What reports say of it."""
        return "" if self._is_leaving else self._token

    # Drains

    def rests(self, task: TaskId, plan: Plan | None) -> bool:
        """Whether a task has nothing to do until the stages behind its own are drained, too."""
        return plan is not None and self._order[task.stage] < plan.drain - 1

    def tend_drain(self, tasks: Mapping[TaskId, Task], plan: Plan) -> None:
        """Let tasks stand still that have read all that they should, and those of the stages before."""
        for task in tasks.values():
            own = self._order[task.id.stage] == plan.drain - 1
            if self.rests(task.id, plan) or (own and self._intake.is_drained(task)):
                self.hold(task)

"""Jobs on Spark, local and on a standalone master with two workers: exact, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import psutil
import pytest

from ops.cluster.java import find_java
from ops.cluster.ports import free_port
from ops.cluster.standalone import Standalone, standalone
from stack import Stack
from stack.deploy.deploy import deploy
from stack.model.fleet import JobState, RunnerPlace
from stack.model.plan import ContainerReport
from stack.runtime.host import IDENTITY_VARIABLE
from stack.zookeeper.fleet import FleetNodes, FleetSession
from tests.cluster.conftest import MakeSettings
from tests.cluster.job_world import SETTINGS, JobWorld
from tests.clusters import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
LIMIT_S = 120.0


class SparkFleet:
    """A stack with a counting job in two containers, and runners as processes of their own."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.world = JobWorld(stack, settings=f"containers = 2\n{SETTINGS}")
        self.session = FleetSession(stack.endpoints.zookeeper).start()
        self.fleet = FleetNodes(self.session, stack.settings.name)
        self.nodes = self.fleet.job("count")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.clicks: Counter[str] = Counter()
        self.identities: set[str] = set()
        deploy(stack, self.world.folder)

    def start_runner(self) -> RunnerPlace:
        """A runner; returns when it is registered."""
        command = [sys.executable, "-m", "ops.runner", "--config", str(self.stack.settings.file)]
        output = self.stack.settings.data / "runner.out"
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        wait_for(lambda: self._place_of(process.pid) is not None, f"the runner, see {output}", LIMIT_S)
        place = self._place_of(process.pid)
        assert place is not None
        self.identities.add(place.id.rpartition(".")[0])
        return place

    def _place_of(self, pid: int) -> RunnerPlace | None:
        return next((place for place in self.fleet.runners() if place.pid == pid), None)

    def reports(self) -> dict[int, ContainerReport]:
        return {report.slot: report for report in self.nodes.reports()}

    def wait_running(self) -> dict[int, ContainerReport]:
        """Wait until both containers run all tasks."""

        def runs() -> bool:
            status = self.nodes.status()
            return status is not None and status.state is JobState.RUNNING and len(self.reports()) == 2

        wait_for(runs, "both containers", LIMIT_S)
        return self.reports()

    def count_on(self) -> None:
        """More clicks, and every one of all of them counted once."""
        self.clicks += self.world.click(500, first=sum(self.clicks.values()))
        total = sum(self.clicks.values())
        wait_for(lambda: self.world.outputs() >= total, f"{total} outputs", LIMIT_S)
        self.world.await_exact(self.clicks, LIMIT_S)

    def containers_left(self) -> list[int]:
        """Processes that a runner of this fleet has launched and that live."""
        return [process.pid for process in psutil.process_iter() if _identity(process) in self.identities]

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(40)
        self.session.close()


def _identity(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(IDENTITY_VARIABLE)
    except psutil.Error:
        return None


Make = Callable[[str], SparkFleet]


@pytest.fixture
def make(make_settings: MakeSettings) -> Iterator[Make]:
    made: list[SparkFleet] = []

    def start(master: str) -> SparkFleet:
        stack = Stack.connect(make_settings(lines=f'spark.master = "{master}"'))
        made.append(SparkFleet(stack))
        made[-1].start_runner()
        made[-1].wait_running()
        made[-1].count_on()
        return made[-1]

    yield start
    for one in made:
        one.close()
        one.stack.close()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("spark"), find_java().command, workers=2, cores=4) as cluster:
        yield cluster


def test_local_a_container_and_then_the_jvm_are_killed_and_the_end_leaves_nothing(make: Make) -> None:
    fleet = make("local[8]")
    before = fleet.reports()
    os.kill(before[0].pid, signal.SIGKILL)
    fleet.count_on()
    fleet.wait_running()
    assert fleet.reports()[0].attempt > before[0].attempt
    assert fleet.reports()[1].pid == before[1].pid
    os.kill(_jvm(fleet).pid, signal.SIGKILL)
    assert fleet.processes[0].wait(LIMIT_S) == 1
    assert "Spark's JVM ended" in (fleet.stack.settings.data / "runner.out").read_text()
    wait_for(lambda: fleet.containers_left() == [], "the containers' end")
    fleet.start_runner()
    fleet.wait_running()
    fleet.count_on()
    jvm = _jvm(fleet)
    fleet.processes[-1].terminate()
    assert fleet.processes[-1].wait(LIMIT_S) == 0
    assert not jvm.is_running()
    assert fleet.containers_left() == []
    assert fleet.reports() == {}
    assert list((fleet.stack.settings.data / "tmp" / "runner").glob("spark-*")) == []


def _jvm(fleet: SparkFleet) -> psutil.Process:
    children = psutil.Process(fleet.processes[-1].pid).children()
    return next(child for child in children if "org.apache.spark.deploy.SparkSubmit" in child.cmdline())


def test_standalone_an_executor_a_worker_and_the_runner_are_killed(make: Make, spark: Standalone) -> None:
    fleet = make(spark.master)
    executor = _executor_of(fleet.reports()[0].pid)
    old = [report for report in fleet.reports().values() if _executor_of(report.pid) == executor]
    executor.kill()
    fleet.count_on()
    _wait_gone(old)
    fleet.wait_running()
    executor = _executor_of(fleet.reports()[0].pid)
    old = [report for report in fleet.reports().values() if _executor_of(report.pid) == executor]
    name, worker = next((name, one) for name, one in spark.processes.items() if one.pid == executor.ppid())
    worker.kill()
    fleet.count_on()
    _wait_gone(old)
    worker.wait()
    spark.start_worker(int(name.removeprefix("worker-")))
    old = list(fleet.wait_running().values())
    fleet.processes[-1].kill()
    fleet.processes[-1].wait()
    fleet.start_runner()
    fleet.count_on()
    _wait_gone(old)
    fleet.wait_running()


def _executor_of(pid: int) -> psutil.Process:
    """The JVM above a container."""
    for parent in psutil.Process(pid).parents():
        if any("CoarseGrainedExecutorBackend" in word for word in parent.cmdline()):
            return parent
    raise AssertionError(f"{pid} has no executor")


def _wait_gone(reports: list[ContainerReport]) -> None:
    pids = [report.pid for report in reports]
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), f"the end of {pids}")


def test_a_master_that_is_not_there_is_told(make_settings: MakeSettings) -> None:
    master = f"spark://127.0.0.1:{free_port(())}"
    settings = make_settings(lines=f'spark.master = "{master}"')
    command = [sys.executable, "-m", "ops.runner", "--config", str(settings.file)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert answer.returncode == 1
    assert f"feedstack: Spark at {master} cannot be reached" in answer.stderr
    assert "Check spark.master in stack.toml" in answer.stderr

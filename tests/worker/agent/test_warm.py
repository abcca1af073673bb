"""Child processes are reused for their imports, without changes made by user code."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.spec import SubEpochSpec
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.processes.children import FREE_MEMORY_S, ChildPool
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings
from tests.worker.agent.agents import ROOT, Agents, is_running, until

pytestmark = pytest.mark.processes


class Counted(SubEpochSpec):
    """Records its process when decoded, and changes a shared module."""

    def __init__(self, notes: Path, name: str) -> None:
        self.notes, self.name = notes, name

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        found = getattr(json, "left_behind", "")
        json.left_behind = self.name  # type: ignore[attr-defined]
        with (self.notes / "decoded").open("a") as file:
            file.write(f"{self.name} {os.getpid()} {found}\n")


def result(agents: Agents, key: str) -> TaskResult:
    event = agents.end_of(key)
    assert isinstance(event, TaskCommitted), event
    return event.result


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_imports_are_not_repeated(agents: Agents, tmp_path: Path) -> None:
    """The same code reuses its process.

    Other code gets a new process with the platform's imports and no changes by the first.
    """
    process = agents.start(is_fork=False, NOTES=str(tmp_path))
    one, other = (agents.learn(Counted(tmp_path, name)) for name in ("one", "other"))
    codes = (one, one, other, other, one)
    results = [result(agents, agents.give(n, "spec", code=code)) for n, code in enumerate(codes)]
    decoded = lines(tmp_path / "decoded")
    assert [line[0] for line in decoded] == ["one", "other", "one"]
    assert len({pid for _, pid, *_ in decoded}) == 3
    assert all(len(line) == 2 for line in decoded)  # no earlier changes
    imports = {int(pid) for (pid,) in lines(tmp_path / "handler")} - {process.pid}
    assert len(imports) == 1
    assert not imports & {int(pid) for _, pid, *_ in decoded}
    assert all(results[first].timings.start_s > 0 for first in (0, 2, 4))


@pytest.mark.slow
def test_imports_are_done_before_the_first_sub_epoch(agents: Agents, tmp_path: Path) -> None:
    """A worker that only trains starts its process once its volume has training data."""
    agent = agents.start(is_fork=False, NOTES=str(tmp_path))
    assert psutil.Process(agent.pid).children() == []
    (tmp_path / "shards" / "datasets" / "scans").mkdir(parents=True)
    until(lambda: len(lines(tmp_path / "handler")) == 2, "the agent and a process that have imported")
    result(agents, agents.give(0, "spec", code=agents.learn(Counted(tmp_path, "one"))))
    assert len(lines(tmp_path / "handler")) == 2, "no other process imported anything"


@pytest.mark.parametrize("how", ["leave", "daemon"])
def test_processes_of_a_task_end_with_it(agents: Agents, how: str) -> None:
    """Daemons end before the task is reported as done. The log says so once."""
    agents.start()
    result(agents, agents.give(0, how))
    assert not is_running(left := int(agents.gate(0).read_text()))
    (note,) = [line for line in agents.log(0).splitlines() if "outlived" in line]
    assert f"({left})" in note
    result(agents, agents.give(1, "work"))
    assert "outlived" not in agents.log(1)


def test_a_daemon_ends_with_a_killed_process(agents: Agents) -> None:
    """Here the worker ends it, because the next task hangs."""
    agents.start()
    result(agents, agents.give(0, "daemon"))
    left = int(agents.gate(0).read_text())
    assert agents.failure(agents.give(1, "hang", hang_timeout_s=0.2))[0] is FailureKind.HANG
    assert not is_running(left)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["work", "crash"])
def test_the_death_of_user_code_is_reported_with_its_signal(
    agents: Agents, tmp_path: Path, first: str
) -> None:
    """The agent is not the parent of the dead process; later forks are covered too."""
    agents.start()
    other = agents.learn(Counted(tmp_path, "other"))
    agents.end_of(agents.give(0, first))
    key = agents.give(1, "crash", code=other)
    kind, message = agents.failure(key)
    assert kind is FailureKind.CRASH
    assert message.startswith(f"the process ended by signal {signal.SIGKILL.name}")
    result(agents, agents.give(2, "spec", code=other))


# --- retention of children --------------------------------------------------------------------------


class WarmChildren:
    """A worker's children with memory usage set by the test."""

    def __init__(self, root: Path) -> None:
        self.files = root / "group"
        self.files.mkdir()
        settings = Settings.from_environment(
            {"CEREBRO_TOKEN": "x", "CEREBRO_WORKER": "w", "CEREBRO_VOLUMES": str(root), "CEREBRO_CORES": "1"}
        )
        self.use(50)
        group = MemoryGroup(
            events=self.files / "events", limit=self.files / "memory.max", meminfo=self.files / "meminfo"
        )
        self.children = ChildPool(settings, group)

    def use(self, percent: int, droppable: int = 0) -> None:
        (self.files / "memory.max").write_text("1000000\n")
        (self.files / "memory.current").write_text(f"{(percent + droppable) * 10000}\n")
        (self.files / "memory.stat").write_text(f"anon 1\ninactive_file {droppable * 10000}\n")

    def take(self, handler: str, archive: str = "", devices: tuple[int, ...] = (0,)) -> ChildProcess:
        (child,) = self.take_parts(handler, devices, devices, archive=archive)
        return child

    def take_parts(
        self, handler: str, devices: tuple[int, ...], *parts: tuple[int, ...], archive: str = ""
    ) -> tuple[ChildProcess, ...]:
        """Take children for a task of several devices, each with a part of the devices."""
        shares = [Share(devices=part, threads=1) for part in parts]
        settings = [
            ChildSpec(handler=handler, python=sys.executable, archive=archive, share=share)
            for share in shares
        ]
        return self.children.take(devices, settings)

    def make_ready(self, handler: str, *devices: int) -> None:
        """Expect models on these devices."""
        self.children.make_ready(
            ChildSpec(
                handler=handler,
                python=sys.executable,
                archive="",
                share=Share(devices=(device,), threads=1),
            )
            for device in devices
        )

    def task(self, handler: str, archive: str = "", devices: tuple[int, ...] = (0,)) -> int:
        """Run a task; return its process id."""
        child = self.take(handler, archive, devices)
        self.children.done(devices)
        return child.pid


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmChildren]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kept_children = WarmChildren(tmp_path)
    yield kept_children
    kept_children.children.end_all()


ETL, MODEL = "tests.worker.agent.fake_handler", "tests.worker.agent.warm_handler"


def test_a_prepared_process_runs_the_first_task(kept: WarmChildren) -> None:
    """No process starts on a device with an idle or busy one."""
    busy = kept.take(MODEL, devices=(1,))
    kept.make_ready(MODEL, 0, 1)
    assert len(kept.children._children) == 2
    ready = kept.children._children[(0,), MODEL].pid
    assert kept.task(MODEL) == ready
    kept.make_ready(MODEL, 0, 1)
    assert kept.take(MODEL).pid == ready
    assert is_running(busy.pid)


def test_the_newest_idle_processes_are_kept(kept: WarmChildren) -> None:
    """One per device and one more stay, shortly after their last task. Busy processes do not count."""
    busy = kept.take(MODEL)
    pids = [kept.task(ETL, devices=(device,)) for device in (1, 2, 3, 4)]
    kept.children.tidy()
    assert all(is_running(pid) for pid in pids), "their next task is probably near"
    for device in (1, 2, 3, 4):
        kept.children._children[(device,), ETL].used -= FREE_MEMORY_S + 5 - device
    kept.children.tidy()
    assert [is_running(pid) for pid in pids] == [False, False, True, True]
    assert is_running(busy.pid)


def test_idle_processes_end_when_memory_is_short(kept: WarmChildren) -> None:
    """This happens next to a busy process and on an idle worker; reclaimable page cache is not counted."""
    etl = kept.task(ETL)
    kept.use(50, droppable=45)
    assert not kept.children.is_crowded()
    model = kept.take(MODEL)
    kept.use(95)
    assert kept.children.is_crowded()
    kept.children.end_idle_if_memory_is_short()
    assert not is_running(etl)
    assert is_running(model.pid)
    assert not kept.children.is_crowded()
    kept.children.done((0,))
    kept.children.tidy()
    assert not is_running(model.pid)


def test_a_group_keeps_processes_of_earlier_tasks(kept: WarmChildren) -> None:
    """The end of a device's earlier single task, however late, neither frees nor ends the group's processes."""
    alone = [kept.take(ETL, devices=(number,)) for number in (0, 1)]
    group = kept.take_parts(ETL, (0, 1), (0,), (1,))
    assert list(group) == alone
    kept.children.done((0,))
    kept.children.done((1,), is_spent=True)
    kept.use(95)
    kept.children.end_idle_if_memory_is_short()
    assert all(is_running(child.pid) for child in group)
    kept.children.done((0, 1))
    kept.children.end_idle_if_memory_is_short()
    assert not any(is_running(child.pid) for child in group)
    assert not kept.children.take_again((0, 1), group)


def test_a_spent_process_runs_no_other_task(kept: WarmChildren) -> None:
    """The failure may have left its modules in any state."""
    child = kept.take(ETL)
    kept.children.done((0,), is_spent=True)
    assert not is_running(child.pid)
    assert kept.task(ETL) != child.pid

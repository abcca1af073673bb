"""Processes outlive their task: what one has imported is there for the next one, and what user code changed is not."""

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
from cerebro.contract.tasks import FailureKind, TaskResult
from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.spec import SubEpochSpec
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.processes.children import FREE_MEMORY_S, ChildPool
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings
from tests.worker.agent.agents import ROOT, Agents, is_running, until

pytestmark = pytest.mark.processes


class Counted(SubEpochSpec):
    """Notes where it is decoded, and meets what others left in a module that all of them use."""

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
def test_no_import_is_paid_twice(agents: Agents, tmp_path: Path) -> None:
    """The same code finds its process, with all that it has imported. Other code gets a process of its own, in which
    the platform's imports are done and nothing is left of the first."""
    process = agents.start(is_fork=False, NOTES=str(tmp_path))
    one, other = (agents.learn(Counted(tmp_path, name)) for name in ("one", "other"))
    codes = (one, one, other, other, one)
    results = [result(agents, agents.give(n, "spec", code=code)) for n, code in enumerate(codes)]
    decoded = lines(tmp_path / "decoded")
    assert [line[0] for line in decoded] == ["one", "other", "one"]
    assert len({pid for _, pid, *_ in decoded}) == 3
    assert all(len(line) == 2 for line in decoded)  # nothing was left behind
    imports = {int(pid) for (pid,) in lines(tmp_path / "handler")} - {process.pid}
    assert len(imports) == 1
    assert not imports & {int(pid) for _, pid, *_ in decoded}
    assert all(results[first].timings.start_s > 0 for first in (0, 2, 4))


@pytest.mark.slow
def test_the_first_sub_epoch_after_preprocessing_finds_the_imports_done(
    agents: Agents, tmp_path: Path
) -> None:
    """A worker that only trains starts its process once training data appears on its volume, not earlier."""
    agent = agents.start(is_fork=False, NOTES=str(tmp_path))
    assert psutil.Process(agent.pid).children() == []
    (tmp_path / "shards" / "datasets" / "scans").mkdir(parents=True)
    until(lambda: len(lines(tmp_path / "handler")) == 2, "the agent and a process that have imported")
    result(agents, agents.give(0, "spec", code=agents.learn(Counted(tmp_path, "one"))))
    assert len(lines(tmp_path / "handler")) == 2, "no other process imported anything"


@pytest.mark.parametrize("how", ["leave", "daemon"])
def test_what_a_task_left_running_ends_with_it(agents: Agents, how: str) -> None:
    """Daemons end as well, before the task is reported as done. The log says so once."""
    agents.start()
    result(agents, agents.give(0, how))
    assert not is_running(left := int(agents.gate(0).read_text()))
    (note,) = [line for line in agents.log(0).splitlines() if "outlived" in line]
    assert f"({left})" in note
    result(agents, agents.give(1, "work"))
    assert "outlived" not in agents.log(1)


def test_a_daemon_ends_with_a_process_that_is_ended(agents: Agents) -> None:
    """By the worker, here because the next task hangs."""
    agents.start()
    result(agents, agents.give(0, "daemon"))
    left = int(agents.gate(0).read_text())
    assert agents.failure(agents.give(1, "hang", hang_timeout_s=0.2))[0] is FailureKind.HANG
    assert not is_running(left)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["work", "crash"])
def test_the_death_of_user_code_is_told_by_its_signal(agents: Agents, tmp_path: Path, first: str) -> None:
    """Though the process that died was not started by the agent; also in a process that was forked later."""
    agents.start()
    other = agents.learn(Counted(tmp_path, "other"))
    agents.end_of(agents.give(0, first))
    key = agents.give(1, "crash", code=other)
    kind, message = agents.failure(key)
    assert kind is FailureKind.CRASH
    assert message.startswith(f"the process ended by signal {signal.SIGKILL.name}")
    result(agents, agents.give(2, "spec", code=other))


# --- which children are kept ------------------------------------------------------------------------


class Kept:
    """Children of a worker whose memory is what the test says."""

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
        """For a task of some devices, children that have a part of them each."""
        shares = [Share(devices=part, threads=1) for part in parts]
        settings = [
            ChildSpec(handler=handler, python=sys.executable, archive=archive, share=share)
            for share in shares
        ]
        return self.children.take(devices, settings)

    def make_ready(self, handler: str, *devices: int) -> None:
        """Models are expected on these devices."""
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
        """Does one; returns the pid of its process."""
        child = self.take(handler, archive, devices)
        self.children.done(devices)
        return child.pid


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = Kept(tmp_path)
    yield made
    made.children.end_all()


ETL, MODEL = "tests.worker.agent.fake_handler", "tests.worker.agent.warm_handler"


def test_a_process_that_was_made_ready_does_the_first_task(kept: Kept) -> None:
    """On its device; where there is one already, or one is busy, none is started."""
    busy = kept.take(MODEL, devices=(1,))
    kept.make_ready(MODEL, 0, 1)
    assert len(kept.children._children) == 2
    ready = kept.children._children[(0,), MODEL].pid
    assert kept.task(MODEL) == ready
    kept.make_ready(MODEL, 0, 1)
    assert kept.take(MODEL).pid == ready
    assert is_running(busy.pid)


def test_of_many_processes_without_a_task_the_newest_are_kept(kept: Kept) -> None:
    """One for each device, and one more; a moment after their last task. What has a task does not count."""
    busy = kept.take(MODEL)
    pids = [kept.task(ETL, devices=(device,)) for device in (1, 2, 3, 4)]
    kept.children.tidy()
    assert all(is_running(pid) for pid in pids), "their next task is probably near"
    for device in (1, 2, 3, 4):
        kept.children._children[(device,), ETL].used -= FREE_MEMORY_S + 5 - device
    kept.children.tidy()
    assert [is_running(pid) for pid in pids] == [False, False, True, True]
    assert is_running(busy.pid)


def test_a_process_without_a_task_is_ended_when_memory_is_short(kept: Kept) -> None:
    """Beside one that has a task, and when nothing runs; files that could be dropped at once are no use of memory."""
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


def test_a_group_keeps_its_processes_from_those_who_had_them_before(kept: Kept) -> None:
    """A device's own slot is done with its task a moment later, and again when it has ended: neither frees, nor ends,
    what a task of several devices has by then."""
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


def test_a_spent_process_is_met_by_no_other_task(kept: Kept) -> None:
    """What failed may have left its modules in any state."""
    child = kept.take(ETL)
    kept.children.done((0,), is_spent=True)
    assert not is_running(child.pid)
    assert kept.task(ETL) != child.pid

"""Out-of-memory kills are detected by the kernel's counters, in cgroup v1 and v2."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.contract.events import TaskCommitted
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import FusedMember, FusedTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.usage.memory import MemoryGroup, own_group
from cerebro.worker.agent.attempt_runner import Patience
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.group_runner import GroupRunner
from cerebro.worker.agent.lease import Lease
from cerebro.worker.agent.mailbox import DeviceQueues, Mailbox
from cerebro.worker.agent.processes import process
from cerebro.worker.agent.processes.group import ChildGroup
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec, KernelKills
from cerebro.worker.agent.settings import Settings
from cerebro.worker.protocol.messages import Failed
from tests.control_groups import run_in
from tests.kvs_api.occupancy_contract import sub_epoch_body
from tests.waiting import HANG_S
from tests.worker.agent.agents import ROOT, Agents, is_running
from tests.worker.agent.fake_handler import LARGE_BYTES, LOST_PEER

LOST = Failure(kind=FailureKind.USER_ERROR, message=f"RuntimeError: {LOST_PEER}")
CRASH = Failure(kind=FailureKind.CRASH, message="preprocessing process 1 died with signal SIGKILL")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def v2(kills: int, limit: str = "2147483648") -> dict[str, str]:
    """Return a cgroup's files in version 2."""
    return {"memory.events": f"low 0\nhigh 0\nmax 7\noom 9\noom_kill {kills}\n", "memory.max": f"{limit}\n"}


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "membership"


def test_version_2_in_a_container(tmp_path: Path, membership: Path) -> None:
    """The mount starts at the container's cgroup."""
    membership.write_text("0::/\n")
    write(tmp_path, v2(3))
    group = own_group(tmp_path, membership)
    assert (group.kills(), group.limit_bytes()) == (3, 2 << 30)


def test_version_1(tmp_path: Path, membership: Path) -> None:
    """Version 1 has other files and another value for "no limit"."""
    membership.write_text("9:name=systemd:/\n4:memory:/pods/x\n0::/\n")
    write(tmp_path / "memory" / "pods" / "x", {
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        "memory.limit_in_bytes": "1073741824\n",
    })  # fmt: skip
    group = own_group(tmp_path, membership)
    assert (group.kills(), group.limit_bytes()) == (4, 1 << 30)
    group.limit.write_text("9223372036854771712\n")
    assert group.limit_bytes() is None


class Started:
    """A child in a cgroup of fake files."""

    def __init__(self, root: Path) -> None:
        self.files = root / "group"
        write(self.files, v2(2))
        settings = Settings.from_environment(
            {
                "CEREBRO_TOKEN": "x",
                "CEREBRO_WORKER": "worker-0",
                "CEREBRO_VOLUMES": str(root),
                "CEREBRO_CORES": "1",
            }
        )
        group = MemoryGroup(events=self.files / "memory.events", limit=self.files / "memory.max")
        self._kills = KernelKills(group)

        def new_child(device: int) -> ChildProcess:
            setting = ChildSpec(
                handler="tests.worker.agent.fake_handler",
                python=sys.executable,
                archive="",
                share=Share(devices=(device,), threads=1),
            )
            return ChildProcess(setting, settings, group, self._kills)

        self.made = new_child
        self.child = new_child(0)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = Started(tmp_path)
    yield started
    started.child.kill()


@pytest.mark.processes
def test_a_death_with_a_kill_counted_is_lack_of_memory(started: Started) -> None:
    """The message has the limit and the remedy."""
    os.killpg(started.child.pid, 9)
    write(started.files, v2(3))
    failure = started.child.reap()
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "2.00 GiB" in failure.message
    assert "raise the memory limit of the workers" in failure.message


@pytest.mark.processes
def test_an_error_after_a_killed_helper_process_is_explained(started: Started) -> None:
    """The kernel kills helper processes of ETL and data loaders first. Errors with a cause keep it."""
    assert started.child.explained(CRASH) == CRASH
    write(started.files, v2(3))
    explained = started.child.explained(CRASH)
    assert explained.kind is FailureKind.OUT_OF_MEMORY
    assert CRASH.message in explained.message
    full = Failure(kind=FailureKind.STORAGE_FULL, message="no room")
    assert started.child.explained(full) == full


@pytest.mark.processes
def test_an_error_of_a_model_in_a_fused_group_is_explained_too(started: Started, tmp_path: Path) -> None:
    """The kernel may kill a helper process of user code in a group."""
    hyperparams = {"do": "raise", "file": str(tmp_path / "gate")}
    bodies = [
        sub_epoch_body(f"fit-1/train/m0{number}/e1/p0", None).model_copy(update={"hyperparams": hyperparams})
        for number in range(2)
    ]
    members = tuple(FusedMember(task=body.key, attempt=1, body=body) for body in bodies)
    item = InboxItem(seq=1, experiment="one", task=bodies[0].key, attempt=1, body=FusedTask(members=members))
    lease = Lease()
    lease.begin(item)
    assert item.body is not None
    started.child.run(item.body, 1, {bodies[0].code: "code"}, tmp_path / "log", received_at=0.0)
    write(started.files, v2(3))
    GroupRunner(
        started.child,
        item,
        explain=lambda failure, attempt: failure,
        worker="worker-0",
        patience=Patience(HANG_S),
        lease=lease,
        drain=Drain(),
        notification=Mailbox(DeviceQueues(lambda devices: None)),
        on_notification=lambda: None,
    ).follow_members()
    kinds = [step.failure.kind for step in lease.unreported if isinstance(step, api.Fail)]
    assert kinds == [FailureKind.OUT_OF_MEMORY, FailureKind.USER_ERROR]  # one kill explains one error


@pytest.mark.processes
def test_a_rank_killed_by_the_kernel_is_reported_as_lack_of_memory(started: Started) -> None:
    """The other rank reports its lost connection first."""
    other = started.made(1)
    ranks = ChildGroup([started.child, other], started.files / "ranks")
    try:
        ranks.run(
            sub_epoch_body("fit-1/train/m00/e1/p0", None), 1, {}, started.files / "log", received_at=0.0
        )
        assert ranks.channel._take(0, Failed(failure=LOST, failed_at=0.0)) is None
        os.killpg(other.pid, 9)
        write(started.files, v2(3))
        answer = None
        while not isinstance(answer, Failed):
            answer = ranks.channel.pending()
        failure = answer.failure
        assert (failure.kind, failure.memory_kind, failure.rank) == (FailureKind.OUT_OF_MEMORY, "host", 1)
        assert failure.message.startswith("rank 1 of 2 (device 1): killed by the kernel for lack of memory")
        assert not ranks.is_alive()
    finally:
        ranks.kill()
        ranks.close()


class Counted:
    """A cgroup whose kill count the test sets."""

    def __init__(self, root: Path) -> None:
        self.events = root / "memory.events"
        self.num = 0
        self.kill(0)
        self.kills = KernelKills(MemoryGroup(events=self.events, limit=root / "memory.max"))

    def kill(self, number: int = 1) -> None:
        self.num += number
        self.events.write_text(f"oom_kill {self.num}\n")


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(process, "_CLAIM_S", 0.0)
    return Counted(tmp_path)


def test_a_kill_explains_the_end_of_one_attempt(counted: Counted) -> None:
    """Two attempts fail; only the one whose process was killed is explained, in any order of the queries."""
    one, other = counted.kills.count(), counted.kills.count()
    counted.kill()
    assert counted.kills.claim(one, was_killed=True)
    assert not counted.kills.claim(other, was_killed=False)


def test_each_kill_explains_one_end(counted: Counted) -> None:
    """Earlier and already explained kills explain nothing."""
    counted.kill()
    first = counted.kills.count()
    assert not counted.kills.claim(first, was_killed=True)
    counted.kill(2)
    later = counted.kills.count()
    assert counted.kills.claim(first, was_killed=True)
    counted.kill()
    assert counted.kills.claim(later, was_killed=False)
    assert counted.kills.claim(first, was_killed=False)
    assert not counted.kills.claim(first, was_killed=False)


def test_an_error_waits_briefly_for_the_end_that_the_kill_explains(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel increments the counter before the process ends and the agent notices."""
    monkeypatch.setattr(process, "_CLAIM_S", 20.0)
    before = counted.kills.count()
    counted.kill()
    found: list[bool] = []
    asker = threading.Thread(target=lambda: found.append(counted.kills.claim(before, was_killed=False)))
    asker.start()
    assert counted.kills.claim(before, was_killed=True)
    asker.join(HANG_S)
    assert found == [False]


def test_each_attempt_reports_its_own_peak_of_memory(agents: Agents) -> None:
    """One process runs all tasks; each reports its own peak. Older versions can read results without one."""
    agents.start()
    results = []
    for number, do in enumerate(["work", "large", "work"]):
        event = agents.end_of(agents.give(number, do))
        assert isinstance(event, TaskCommitted)
        results.append(event.result)
    before, large, after = (result.peak_bytes for result in results)
    assert before > 0
    assert large > max(before, after) + LARGE_BYTES // 2
    assert {result.peak_gpu_bytes for result in results} == {0}
    assert not {"peak_bytes", "peak_gpu_bytes"} & TaskResult().model_dump().keys()


_HUNGRY = """
import sys
from pathlib import Path
from cerebro.runtime.usage import memory
from cerebro.contract.tasks.failures import FailureKind
sys.path.insert(0, sys.argv[1])
from tests.worker.agent.test_memory import hungry_child
group = memory.own_group()
failure = hungry_child(Path(sys.argv[2]), group)
print(failure.kind, "|", failure.message)
"""


def hungry_child(root: Path, group: MemoryGroup) -> Failure:
    """Run a child that uses up the memory of this process's cgroup; return its failure."""
    settings = Settings.from_environment(
        {
            "CEREBRO_TOKEN": "x",
            "CEREBRO_WORKER": "worker-0",
            "CEREBRO_VOLUMES": str(root),
            "CEREBRO_CORES": "1",
        }
    )
    setting = ChildSpec(
        handler="tests.worker.agent.hungry_handler", python=sys.executable, archive="", share=Share(threads=1)
    )
    child = ChildProcess(setting, settings, group)
    child._process.wait()
    return child.reap()


@pytest.mark.processes
@pytest.mark.slow
def test_lack_of_memory_on_one_device_spares_tasks_on_others(small_group: Path, agents: Agents) -> None:
    """Uses real memory.

    A process on the other device that is killed for another reason shortly afterwards is not misreported.
    """
    agents.start(devices=2, group=small_group)
    spared = agents.give(0, "wait", devices=(0,))
    pid = agents.begun(0)
    kind, message = agents.failure(agents.give(1, "hungry", devices=(1,)))
    assert kind is FailureKind.OUT_OF_MEMORY
    assert "killed by the kernel for lack of memory" in message
    assert is_running(pid)
    agents.gate(0).touch()
    assert isinstance(agents.end_of(spared), TaskCommitted)
    killed = agents.give(2, "wait", devices=(0,))
    os.kill(agents.begun(2), signal.SIGKILL)
    kind, message = agents.failure(killed)
    assert (kind, message) == (FailureKind.CRASH, "the process ended by signal SIGKILL")


@pytest.mark.processes
@pytest.mark.slow
def test_the_agent_reports_a_child_killed_by_the_kernel(small_group: Path, tmp_path: Path) -> None:
    """Uses real memory; the parent survives and reports the reason."""

    answer = run_in(small_group, _HUNGRY, ROOT, tmp_path)
    assert answer.startswith("out_of_memory | killed by the kernel for lack of memory"), answer
    assert "0.38 GiB" in answer

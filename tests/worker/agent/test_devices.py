"""A worker's devices, the share of a task, and the order of tasks on each device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.tasks.inbox import InboxItem
from cerebro.errors import ClusterError
from cerebro.runtime.usage.gpus import Gpu
from cerebro.runtime.usage.memory import own_group
from cerebro.worker.agent.devices import Share, WorkerDevices
from cerebro.worker.agent.mailbox import DeviceQueues, Mailbox, overlap
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings
from tests.worker.agent.agents import ROOT

GPUS = tuple(Gpu(name="A100", uuid=f"GPU-{letter}", memory_bytes=80) for letter in "abcd")
ESSENTIAL = {"CEREBRO_TOKEN": "secret", "CEREBRO_WORKER": "worker-3", "CEREBRO_CORES": "4"}

# --- devices -----------------------------------------------------------------------------------------


def test_without_gpus_a_worker_has_one_device_with_all_cores() -> None:
    """Tasks with and without the device may use all cores, and no GPU variable is set."""
    devices = WorkerDevices(4)
    (one,) = devices.devices
    assert (one.kind, one.threads, one.memory_bytes) == ("cpu", 4, None)
    for taken in ((0,), ()):
        share = devices.share(taken)
        assert (share.devices, share.threads, share.visible_gpus) == (taken, 4, None)


def test_each_gpu_is_a_device() -> None:
    """It is identified by UUID, not index; a task without devices sees no GPU."""
    devices = WorkerDevices(16, None, GPUS)
    assert [(d.kind, d.name, d.memory_bytes, d.threads) for d in devices.devices] == [
        ("gpu", "A100", 80, 4)
    ] * 4
    assert devices.gpus == ("A100",) * 4
    assert [devices.share(taken).visible_gpus for taken in ((2,), (1, 3), ())] == ["GPU-c", "GPU-b,GPU-d", ""]
    assert [devices.share(taken).threads for taken in ((2,), (1, 3), ())] == [4, 8, 16]


@pytest.mark.parametrize(
    ("gpus", "number", "what"), [((), 5, "4 cores"), (GPUS, 5, "4 GPUs"), ((), 10**6, "4 cores")]
)
def test_more_devices_than_there_are_is_an_error(gpus: tuple[Gpu, ...], number: int, what: str) -> None:
    """The error has the available number and the remedy."""
    with pytest.raises(
        ClusterError, match=f"CEREBRO_DEVICES is {number}, but this worker has {what}: set at most 4"
    ):
        WorkerDevices(4, number, gpus)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", " "])
def test_devices_are_a_number_from_1(text: str) -> None:
    """The worker fails before it registers."""
    with pytest.raises(ClusterError, match=r"CEREBRO_DEVICES is .* expected a number of devices from 1"):
        Settings.from_environment(ESSENTIAL | {"CEREBRO_DEVICES": text})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("given", "threads", "message"),
    [(None, 2, "2"), ("8", 2, "2"), ("1", 2, "1"), ("all", 2, "2"), ("8", 4, "8")],
)
def test_a_process_sees_only_its_devices_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, threads: int, message: str
) -> None:
    """It has the GPUs of its devices and its share of threads, or fewer if the user set that.

    Output before a task goes to a separate log.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    settings = Settings.from_environment(ESSENTIAL | {"CEREBRO_VOLUMES": str(tmp_path)})
    share = Share(devices=(1, 3), threads=threads, visible_gpus="GPU-b,GPU-d")
    spec = ChildSpec(
        handler="tests.worker.agent.fake_handler", python=sys.executable, archive="", share=share
    )
    child = ChildProcess(spec, settings, own_group())
    try:
        found = b""
        while not found and child.is_alive():  # exec clears the environment for a moment
            found = Path(f"/proc/{child.pid}/environ").read_bytes()
    finally:
        child.kill()
    environment = dict(line.split(b"=", 1) for line in found.split(b"\0") if line)
    assert environment[b"CUDA_VISIBLE_DEVICES"] == b"GPU-b,GPU-d"
    assert environment[b"OMP_NUM_THREADS"] == message.encode()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["worker-3.1.3.child.log"]


# --- order of tasks ----------------------------------------------------------------------------------

SETS = st.sets(st.integers(0, 3), max_size=3).map(lambda numbers: tuple(sorted(numbers)))


@given(given=st.lists(SETS, max_size=12), choices=st.lists(st.integers(0, 10**6), max_size=80))
def test_tasks_start_in_order_on_each_device(given: list[tuple[int, ...]], choices: list[int]) -> None:
    """No device has two tasks, its tasks start in order of arrival, and an idle worker starts one."""
    freed: list[tuple[int, ...]] = []
    queues = DeviceQueues(freed.append)
    boxes = {devices: Mailbox(queues) for devices in set(given)}
    coming = [
        InboxItem(seq=n + 1, experiment="one", task=f"t{n}", attempt=1, devices=devices)
        for n, devices in enumerate(given)
    ]
    begun: list[InboxItem] = []
    running: list[InboxItem] = []
    waiting = 0

    def try_to_begin() -> bool:
        for box in boxes.values():
            if (item := box.next()) is not None:
                assert not any(overlap(item.devices, other.devices) for other in running)
                begun.append(item)
                running.append(item)
                return True
        return False

    def end(choice: int) -> None:
        ended = running.pop(choice % len(running))
        queues.leave(ended)
        assert freed[-1] == ended.devices

    for choice in choices:
        if choice % 3 == 0 and coming:
            item = coming.pop(0)
            boxes[item.devices].put(item)
            waiting += 1
        elif choice % 3 == 1 and running:
            end(choice)
        elif try_to_begin():
            waiting -= 1
        else:
            assert running or not waiting
    for item in coming:
        boxes[item.devices].put(item)
    while try_to_begin() or running:
        if running:
            end(0)
    assert len(begun) == len(given)
    for device in range(4):
        came = [item.seq for item in begun if device in item.devices]
        assert came == sorted(came)
    for box in boxes.values():
        box.close()


def test_the_next_task_may_start_in_the_step_that_ends_the_previous_task() -> None:
    """An older task that waits for one of the devices has priority."""
    queues = DeviceQueues(lambda devices: None)
    one, pair = Mailbox(queues), Mailbox(queues)
    first, second, both, third = (
        InboxItem(seq=n, experiment="one", task=f"t{n}", attempt=1, devices=devices)
        for n, devices in enumerate([(0,), (0,), (0, 1), (0,)], start=1)
    )
    for box, item in ((one, first), (one, second), (pair, both), (one, third)):
        box.put(item)
    assert one.next() == first
    assert one.next(behind=first) == second
    queues.leave(first)
    assert one.next(behind=second) is None
    assert pair.next() is None
    queues.leave(second)
    assert pair.next() == both

"""Workers measure usage from kernel files, inside or outside containers, and from the GPU driver."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cerebro.runtime.usage import volumes
from cerebro.runtime.usage.gpus import Gpus
from cerebro.runtime.usage.meter import UsageMeter
from cerebro.runtime.usage.volumes import VolumeCollector
from tests.waiting import HANG_S

GIB = 2**30
NO_GPUS = Gpus(library=None, visible="")


def write(root: Path, **files: str) -> None:
    """Write files by path, with `__` for a slash and `_DOT_` for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def meter(root: Path, **options: Any) -> UsageMeter:
    chosen: dict[str, Any] = {
        "cores": 2,
        "shards": root,
        "gpus": NO_GPUS,
        "is_container": True,
    } | options
    return UsageMeter(groups=root / "groups", **chosen)


def test_a_container_is_measured_by_its_group(tmp_path: Path) -> None:
    """Reads cgroup v2: processor time since the previous call, memory without the page cache, and the limit."""
    clock = Clock()
    usage_meter = meter(tmp_path, clock=clock)
    write(
        tmp_path / "groups", cgroup_DOT_controllers="cpu memory", cpu_DOT_stat="usage_usec 5000000\nnr_periods 0\n",
        memory_DOT_current=str(3 * GIB), memory_DOT_stat=f"anon 1\ninactive_file {GIB}\n", memory_DOT_max=str(4 * GIB),
    )  # fmt: skip
    usage_meter = meter(tmp_path, clock=clock)
    first = usage_meter.measure()
    assert (first.cores_used, first.memory_bytes, first.memory_limit_bytes) == (None, 2 * GIB, 4 * GIB)
    clock.now += 10.0
    write(tmp_path / "groups", cpu_DOT_stat="usage_usec 20000000\n")
    assert usage_meter.measure().cores_used == pytest.approx(1.5)


def test_cgroup_version_1_gives_the_same_values(tmp_path: Path) -> None:
    """Version 1 has other files and nanoseconds; a limit near 2^63 means the machine's memory."""
    clock = Clock()
    write(
        tmp_path / "groups", cpuacct__cpuacct_DOT_usage="5000000000\n",
        memory__memory_DOT_usage_in_bytes=str(3 * GIB), memory__memory_DOT_stat=f"total_inactive_file {GIB}\n",
        memory__memory_DOT_limit_in_bytes=str(2**63 - 4096),
    )  # fmt: skip
    usage_meter = meter(tmp_path, clock=clock)
    found = usage_meter.measure()
    assert (found.memory_bytes, found.memory_limit_bytes) == (2 * GIB, psutil.virtual_memory().total)
    clock.now += 2.0
    write(tmp_path / "groups", cpuacct__cpuacct_DOT_usage="9000000000\n")
    assert usage_meter.measure().cores_used == pytest.approx(2.0)


@pytest.mark.processes
def test_unavailable_values_are_none(tmp_path: Path) -> None:
    """Missing files, processes and folders give None, not 0."""
    child = subprocess.Popen(["true"])
    process = psutil.Process(child.pid)
    child.wait()
    for is_container in (True, False):
        options = {"is_container": is_container, "process": process, "shards": tmp_path / "none"}
        found = meter(tmp_path, **options).measure()
        assert found.model_dump(exclude={"cores", "gpus", "memory_limit_bytes"}) == dict.fromkeys(
            ("cores_used", "memory_bytes", "shards_used_bytes", "shards_total_bytes")
        )


PARENT = """
import os, subprocess, sys, time
with open("/proc/self/comm", "wb") as name:
    name.write(b"\\xff\\xfe) R 1")
code = "import sys; sys.stdin.read(1); held = bytearray(64 * 2**20); print(flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=0, stdout=1)
while time.process_time() < 0.3:
    pass
child.wait()
"""
"""A process with a non-UTF-8 name that uses the processor; its child allocates memory on request."""


@pytest.mark.processes
def test_without_a_container_child_processes_are_summed(tmp_path: Path) -> None:
    """Includes all descendants, whatever their names, and no other processes."""
    clock = Clock()
    tree = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert tree.stdin is not None
    assert tree.stdout is not None
    usage_meter = meter(tmp_path, is_container=False, clock=clock, process=psutil.Process(tree.pid))
    before = usage_meter.measure()
    tree.stdin.write(b"x")
    tree.stdout.read(1)
    while sum(psutil.Process(tree.pid).cpu_times()[:2]) < 0.25:
        pass
    clock.now += 1.0
    after = usage_meter.measure()
    tree.communicate()
    assert before.memory_bytes is not None
    assert after.memory_bytes is not None
    assert 50 * 2**20 < after.memory_bytes - before.memory_bytes < 100 * 2**20
    assert after.cores_used is not None
    assert 0.1 < after.cores_used < 2.0


@pytest.mark.parametrize("is_container", [True, False])
def test_unexpected_errors_omit_only_the_affected_value(tmp_path: Path, is_container: bool) -> None:
    """After unexpected file formats or driver errors the other values are still measured."""
    write(
        tmp_path / "groups", cgroup_DOT_controllers="cpu", cpu_DOT_stat="usage_usec many\n", memory_DOT_current="5",
    )  # fmt: skip
    process = SimpleNamespace(children=lambda **_: [SimpleNamespace(cpu_times=lambda: None)])

    class Broken(Gpus):
        def measure(self) -> Any:
            raise RuntimeError("nobody thought of this")

    options = {"is_container": is_container, "process": process, "gpus": Broken("", Driver())}
    found = meter(tmp_path, **options).measure()
    memory = 5 if is_container else None
    assert (found.cores_used, found.memory_bytes, found.gpus) == (None, memory, ())
    assert found.shards_total_bytes


def test_lost_processor_time_is_not_negative(tmp_path: Path) -> None:
    """A grandchild that outlives its parent no longer counts, so the sum may shrink."""
    clock, seconds = Clock(), iter([40.0, 4.0])

    def cpu_times() -> Any:
        return SimpleNamespace(user=next(seconds), system=0.0, children_user=0.0, children_system=0.0)

    process = SimpleNamespace(
        children=lambda **_: [], cpu_times=cpu_times, memory_info=lambda: SimpleNamespace(rss=2, shared=1)
    )
    usage_meter = meter(tmp_path, is_container=False, clock=clock, process=process)
    usage_meter.measure()
    clock.now += 1.0
    assert usage_meter.measure().cores_used == 0.0


@pytest.mark.processes
def test_a_real_process_is_measured(tmp_path: Path) -> None:
    """The child's 64 MiB count too."""
    program = "import sys; held = bytearray(64 * 2**20); sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    usage_meter = UsageMeter(cores=2, shards=tmp_path, gpus=NO_GPUS, is_container=False)
    before = usage_meter.measure()
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    after = usage_meter.measure()
    child.communicate()
    assert before.memory_bytes is not None
    assert after.memory_bytes is not None
    assert after.memory_bytes - before.memory_bytes > 50 * 2**20
    assert after.shards_total_bytes


# --- GPUs ----------------------------------------------------------------------------------------


class Driver:
    """An NVML with two GPUs and one MIG slice of a third."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> Any:
        return f"model of {handle}".encode() if handle == "GPU-0" else f"model of {handle}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"identity of {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if handle in self.gone:
            raise self.NVMLError
        return SimpleNamespace(used=1, total=4)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG"):
            raise self.NVMLError
        return SimpleNamespace(gpu=25)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("model of GPU-0", "model of GPU-1")),
        ("1", ("model of GPU-1",)),
        ("", ()),
        ("1,-1,0", ("model of GPU-1",)),
        ("GPU-7,MIG-3", ("model of GPU-7", "model of MIG-3")),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(visible: str | None, names: tuple[str, ...]) -> None:
    """CUDA reads the list up to the first invalid entry."""
    gpus = Gpus(visible, Driver())
    assert gpus.names == names
    assert [gpu.uuid for gpu in gpus.found] == [name.replace("model", "identity") for name in names]
    assert all(gpu.memory_bytes == 4 for gpu in gpus.found)


def test_gpus_report_utilization_and_memory() -> None:
    """MIG slices report no utilization, and GPUs that disappeared are omitted."""
    driver = Driver()
    gpus = Gpus("0,MIG-3", driver)
    whole, part = gpus.measure()
    assert (whole.name, whole.used_share, whole.memory_bytes, whole.memory_total_bytes) == (
        "model of GPU-0",
        0.25,
        1,
        4,
    )
    assert part.used_share is None
    driver.gone.add("GPU-0")
    assert [gpu.name for gpu in gpus.measure()] == ["model of MIG-3"]


def test_memory_that_the_driver_reserves_is_not_in_use() -> None:
    """nvidia-smi counts the same way; older drivers do not report reserved memory."""

    class Newer(Driver):
        nvmlMemory_v2 = 2  # noqa: N815 - the library's name
        has_newer = True

        def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> Any:
            if version == 2 and not self.has_newer:
                raise self.NVMLError("function not found")
            return SimpleNamespace(used=1 if version == 2 else 3, total=4)

    driver = Newer()
    gpus = Gpus("0", driver)
    assert [gpu.memory_bytes for gpu in gpus.measure()] == [1]
    driver.has_newer = False
    assert [gpu.memory_bytes for gpu in gpus.measure()] == [3]


def test_without_a_driver_there_are_no_gpus() -> None:
    class Absent(Driver):
        def nvmlInit(self) -> None:
            raise self.NVMLError("driver not loaded")

    assert Gpus(None, Absent()).names == ()
    assert Gpus(None, Absent()).measure() == ()


@pytest.mark.commands
def test_usage_never_imports_torch() -> None:
    """The agent must stay small next to the training processes."""
    code = (
        "import sys, cerebro.runtime.usage.gpus as u; u.Gpus(); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


# --- volumes -------------------------------------------------------------------------------------


def test_free_space_is_reported_for_mounted_volumes(tmp_path: Path) -> None:
    """Unmounted volumes are omitted."""
    began = time.time()
    free, size, at = VolumeCollector({"shared": tmp_path, "logs": tmp_path / "none"}).collect()
    assert [sample.labels for sample in free.samples] == [{"volume": "shared"}]
    assert 0 < free.samples[0].value < size.samples[0].value
    assert [sample.labels for sample in at.samples] == [{"volume": "shared"}]
    assert began <= at.samples[0].value <= time.time()


def test_a_hanging_volume_delays_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stuck volume reports its last known values with their time, and only one thread waits for it."""
    monkeypatch.setattr(volumes, "_TIMEOUT_S", 0.05)
    measure, let_go, hung = shutil.disk_usage, threading.Event(), list[Path]()

    def disk_usage(path: Path) -> Any:
        if path.name in hanging:
            hung.append(path)
            assert let_go.wait(HANG_S)
        return measure(path)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    folders = {name: tmp_path / name for name in ("late", "never", "well")}
    for folder in folders.values():
        folder.mkdir()
    hanging = {"never"}
    collector = VolumeCollector(folders)
    first = [{s.labels["volume"]: s.value for s in family.samples} for family in collector.collect()]
    hanging = {"never", "late"}
    for _ in range(2):
        free, size, at = (
            {s.labels["volume"]: s.value for s in family.samples} for family in collector.collect()
        )
        assert free.keys() == size.keys() == {"late", "well"}
        assert at.keys() == {"late", "never", "well"}
        assert at["never"] == 0.0
        assert (free["late"], at["late"]) == (first[0]["late"], first[2]["late"])
        assert at["well"] > first[2]["well"]
    assert [path.name for path in hung] == ["never", "late"]
    let_go.set()

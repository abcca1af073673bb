"""What a worker uses: read from the kernel's files as they are in containers and out of them, and from a driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.usage import volumes
from cerebro.usage.gpus import Gpus
from cerebro.usage.meter import Meter, Sources
from cerebro.usage.volumes import VolumeCollector

GIB = 2**30
NO_GPUS = Gpus(library=None, visible="")


def write(root: Path, **files: str) -> None:
    """Files by path, with `__` for a slash and `_DOT_` for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def meter(root: Path, **options: Any) -> Meter:
    chosen: dict[str, Any] = {
        "cores": 2,
        "shards": root,
        "gpus": NO_GPUS,
        "is_container": True,
        "pid": 7,
    } | options
    return Meter(sources=Sources(proc=root / "proc", groups=root / "groups"), **chosen)


def test_a_container_is_measured_by_its_group(tmp_path: Path) -> None:
    """cgroup v2: processor time since the call before, memory without what could be dropped, the limit."""
    clock = Clock()
    own = meter(tmp_path, clock=clock)
    write(
        tmp_path / "groups", cgroup_DOT_controllers="cpu memory", cpu_DOT_stat="usage_usec 5000000\nnr_periods 0\n",
        memory_DOT_current=str(3 * GIB), memory_DOT_stat=f"anon 1\ninactive_file {GIB}\n", memory_DOT_max=str(4 * GIB),
    )  # fmt: skip
    own = meter(tmp_path, clock=clock)
    first = own.measure()
    assert (first.cores_used, first.memory_bytes, first.memory_limit_bytes) == (None, 2 * GIB, 4 * GIB)
    clock.now += 10.0
    write(tmp_path / "groups", cpu_DOT_stat="usage_usec 20000000\n")
    assert own.measure().cores_used == pytest.approx(1.5)


def test_groups_of_version_1_say_the_same(tmp_path: Path) -> None:
    """Other files, nanoseconds, and a limit near 2^63 that means none: then the machine's memory is."""
    clock = Clock()
    write(
        tmp_path / "groups", cpuacct__cpuacct_DOT_usage="5000000000\n",
        memory__memory_DOT_usage_in_bytes=str(3 * GIB), memory__memory_DOT_stat=f"total_inactive_file {GIB}\n",
        memory__memory_DOT_limit_in_bytes=str(2**63 - 4096),
    )  # fmt: skip
    write(tmp_path / "proc", meminfo="MemFree: 1 kB\nMemTotal:       8388608 kB\n")
    own = meter(tmp_path, clock=clock)
    found = own.measure()
    assert (found.memory_bytes, found.memory_limit_bytes) == (2 * GIB, 8 * GIB)
    clock.now += 2.0
    write(tmp_path / "groups", cpuacct__cpuacct_DOT_usage="9000000000\n")
    assert own.measure().cores_used == pytest.approx(2.0)


def test_what_cannot_be_measured_is_none(tmp_path: Path) -> None:
    """Neither files nor folder: nothing is said, and nothing is 0."""
    for is_container in (True, False):
        found = meter(tmp_path, is_container=is_container, shards=tmp_path / "none").measure()
        assert found.model_dump(exclude={"cores", "gpus"}) == dict.fromkeys(
            ("cores_used", "memory_bytes", "memory_limit_bytes", "shards_used_bytes", "shards_total_bytes")
        )


def process(
    root: Path, pid: int, parent: int, *, ticks: int, pages: int, shared: int, children: str | None
) -> None:
    """One process, its times in clock ticks: 1 of its own of each kind for 4 in all."""
    times = " ".join([str(ticks // 4)] * 4)
    fields = f"S {parent} 1 1 0 -1 0 0 0 0 0 {times} 20 0 1 0 5"
    write(root, **{f"proc__{pid}__stat": f"{pid} (a name) with) {fields}\n"})
    write(root, **{f"proc__{pid}__statm": f"{9 * pages} {pages} {shared} 1 0 1 0\n"})
    if children is not None:
        write(root, **{f"proc__{pid}__task__{pid}__children": children})


@pytest.mark.parametrize("has_lists", [True, False])
def test_elsewhere_processes_below_are_added_up(tmp_path: Path, has_lists: bool) -> None:
    """Children and theirs, by the kernel's lists or by their parents; shared memory once; strangers not at all."""
    clock, page, hertz = Clock(), os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")

    def world(ticks: int) -> None:
        lists: Callable[[str], str | None] = lambda text: text if has_lists else None  # noqa: E731
        process(tmp_path, 7, 1, ticks=ticks, pages=100, shared=40, children=lists("8 "))
        process(tmp_path, 8, 7, ticks=ticks, pages=300, shared=50, children=lists("9 "))
        process(tmp_path, 9, 8, ticks=ticks, pages=60, shared=20, children=lists(""))
        process(tmp_path, 99, 1, ticks=8 * ticks, pages=9999, shared=999, children=lists(""))

    world(4 * hertz)
    own = meter(tmp_path, is_container=False, clock=clock)
    found = own.measure()
    assert found.memory_bytes == (60 + 250 + 40 + 50) * page
    clock.now += 10.0
    world(8 * hertz)
    assert own.measure().cores_used == pytest.approx(3 * 4 / 10)


@pytest.mark.parametrize("has_lists", [True, False])
def test_a_process_may_have_any_name(tmp_path: Path, has_lists: bool) -> None:
    """The kernel gives its bytes as they are: no valid UTF-8, brackets, line breaks."""
    process(tmp_path, 7, 1, ticks=400, pages=100, shared=40, children="8" if has_lists else None)
    process(tmp_path, 8, 7, ticks=400, pages=300, shared=40, children="" if has_lists else None)
    path = tmp_path / "proc" / "8" / "stat"
    path.write_bytes(path.read_bytes().replace(b"a name) with", b"\xff\xfe) R 1\n"))
    found = meter(tmp_path, is_container=False).measure()
    assert found.memory_bytes == (60 + 260 + 40) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("is_container", [True, False])
def test_what_nobody_foresaw_is_not_measured(tmp_path: Path, is_container: bool) -> None:
    """Files of another form, a driver that breaks: the rest is measured all the same."""
    write(
        tmp_path / "groups", cgroup_DOT_controllers="cpu", cpu_DOT_stat="usage_usec many\n", memory_DOT_current="5",
    )  # fmt: skip
    write(tmp_path / "proc", **{"7__stat": "7 (python) S", "7__statm": "none", "meminfo": "MemTotal:\n"})

    class Broken(Gpus):
        def measure(self) -> Any:
            raise RuntimeError("nobody thought of this")

    found = meter(tmp_path, is_container=is_container, gpus=Broken("", Driver())).measure()
    assert (found.cores_used, found.memory_bytes, found.memory_limit_bytes, found.gpus) == (None,) * 3 + ((),)
    assert found.shards_total_bytes


def test_processor_time_that_is_lost_is_not_negative(tmp_path: Path) -> None:
    """A grandchild whose parent ended before it takes its time along."""
    clock = Clock()
    process(tmp_path, 7, 1, ticks=4000, pages=1, shared=1, children="")
    own = meter(tmp_path, is_container=False, clock=clock)
    own.measure()
    clock.now += 1.0
    process(tmp_path, 7, 1, ticks=400, pages=1, shared=1, children="")
    assert own.measure().cores_used == 0.0


def test_a_real_process_is_measured(tmp_path: Path) -> None:
    """This one, with a child that holds 64 MiB: memory and processor time are seen, at a small part of a core."""
    program = "import sys; held = bytearray(64 * 2**20); sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    own = Meter(cores=2, shards=tmp_path, gpus=NO_GPUS, is_container=False)
    before = own.measure()
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    began = time.process_time()
    after = own.measure()
    spent_s = time.process_time() - began
    child.communicate()
    assert before.memory_bytes is not None
    assert after.memory_bytes is not None
    assert after.memory_bytes - before.memory_bytes > 50 * 2**20
    assert after.shards_total_bytes
    # 0.2 % of a core, at a measurement each ten seconds.
    assert spent_s < 0.02


# --- GPUs ----------------------------------------------------------------------------------------


class Driver:
    """NVML with two GPUs and one part of a third."""

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
    """All, or a list of numbers and identities that ends at the first which is neither."""
    assert Gpus(visible, Driver()).names == names


def test_gpus_tell_use_and_memory() -> None:
    """A part of a GPU has no use of its own; one that is gone is left out, the others stay."""
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


def test_without_a_driver_there_are_no_gpus() -> None:
    """Neither an error nor a guess."""

    class Absent(Driver):
        def nvmlInit(self) -> None:
            raise self.NVMLError("driver not loaded")

    assert Gpus(None, Absent()).names == ()
    assert Gpus(None, Absent()).measure() == ()


def test_usage_never_imports_torch() -> None:
    """The agent is small, and measures beside what trains."""
    code = (
        "import sys, cerebro.usage.gpus as u; u.Gpus(); print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


# --- volumes -------------------------------------------------------------------------------------


def test_room_is_told_of_what_is_mounted(tmp_path: Path) -> None:
    """A volume that a service does not mount is left out."""
    began = time.time()
    free, size, at = VolumeCollector({"shared": tmp_path, "logs": tmp_path / "none"}).collect()
    assert [sample.labels for sample in free.samples] == [{"volume": "shared"}]
    assert 0 < free.samples[0].value < size.samples[0].value
    assert [sample.labels for sample in at.samples] == [{"volume": "shared"}]
    assert began <= at.samples[0].value <= time.time()


def test_a_volume_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told of at once, it with what was known before and when; one thread waits, however often."""
    monkeypatch.setattr(volumes, "_PATIENCE_S", 0.05)
    measure, let_go, hung = shutil.disk_usage, threading.Event(), list[Path]()

    def disk_usage(path: Path) -> Any:
        if path.name in hanging:
            hung.append(path)
            assert let_go.wait(60)
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

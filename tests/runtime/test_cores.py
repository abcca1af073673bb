"""Count the cores available to workers and warn when threads exceed them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.records import SILENT_S, WorkerRecord, WorkerStatus
from cerebro.runtime.usage import cores


def worker(
    name: str,
    *,
    threads: int,
    machine: int = 2,
    host: str = "node-a",
    kind: str = "train",
    silent_s: float = 1.0,
) -> WorkerStatus:
    record = WorkerRecord(
        worker=name,
        incarnation="a",
        weight=1,
        cores=threads,
        machine_cores=machine,
        kinds=(kind,),
        host=host,
    )
    return WorkerStatus(record=record, silent_s=silent_s)


def test_threads_are_compared_with_the_cores_of_their_machine() -> None:
    """Two workers that use all cores of one node are reported; on separate nodes they are not."""
    crowd = [worker("worker-0", threads=2), worker("worker-1", threads=2)]
    assert cores.crowded(crowd) == ["2 workers compute with 4 threads on the 2 core(s) of node-a"]
    assert cores.crowded([crowd[0], worker("worker-1", threads=2, host="node-b")]) == []


@pytest.mark.parametrize(
    "beside",
    [
        worker("worker-0-etl", threads=2, kind="etl"),  # idle while its pod trains
        worker("worker-1", threads=2, silent_s=SILENT_S + 1),
        worker("worker-2", threads=2, machine=0),  # an older version, which reports no machine
    ],
    ids=lambda status: status.record.worker,
)
def test_only_threads_that_train_at_once_count(beside: WorkerStatus) -> None:
    """Workers that preprocess, are lost, or did not report their threads are not counted."""
    assert cores.crowded([worker("worker-0", threads=2), beside]) == []


@given(st.lists(st.tuples(st.integers(1, 64), st.sampled_from("ab")), max_size=12), st.integers(1, 64))
def test_a_machine_is_named_if_and_only_if_it_is_crowded(
    workers: list[tuple[int, str]], machine: int
) -> None:
    statuses = [
        worker(f"w{number}", threads=threads, machine=machine, host=host)
        for number, (threads, host) in enumerate(workers)
    ]
    expected = [host for host in "ab" if sum(t for t, at in workers if at == host) > machine]
    assert [line.split()[-1] for line in cores.crowded(statuses)] == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000\n"}, 8),
        ("0::/", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/user/shell", {"cpu.max": "max 100000\n", "user/cpu.max": "300000 100000\n"}, 3),
        ("0::/user", {"cpu.max": "200000 100000\n", "user/cpu.max": "400000 100000\n"}, 2),
        ("4:cpu,cpuacct:/\n3:memory:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_a_container_has_the_cores_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: int
) -> None:
    """The tightest limit of the cgroup and its parents counts, or else the machine's cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{groups}\n")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cores.available(proc=tmp_path / "proc", groups=tmp_path / "groups") == expected

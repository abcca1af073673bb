"""Preparation in another process gives the same plan and errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.errors import LocatorError, MetadataError, VolumeError
from cerebro.runtime.volumes import Volumes
from controller.preparation import preparation
from controller.preparation import process as preparation_process
from tests.small_volume import small_volume
from tests.state.stories import SHA

pytestmark = pytest.mark.processes

WEIGHTS = {"worker-0": 1.0, "worker-1": 1.0}
REQUEST = EtlRequest(code=SHA, code_fingerprint=SHA)


@pytest.fixture
def record(tmp_path: Path) -> ExperimentRecord:
    (tmp_path / "train.csv").write_text("id\n" + "\n".join(f"r{n}" for n in range(9)) + "\n")
    train = Locator(metadata=str(tmp_path / "train.csv"), objects=str(tmp_path))
    return ExperimentRecord(name="one", locators=Locators(train=train))


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")})


def prepared(record: ExperimentRecord, volumes: Volumes) -> EtlPlan:
    return preparation_process.Preparation(record, {}, REQUEST, WEIGHTS, volumes).plan()


@pytest.mark.slow
def test_a_process_prepares_the_same_plan(record: ExperimentRecord, volumes: Volumes) -> None:
    """The plan's files exist."""
    plan = prepared(record, volumes)
    assert plan == preparation.prepare_etl(record, {}, REQUEST, WEIGHTS, volumes)
    assert all(volumes.metadata(plan.dataset, "train", p.partition).is_file() for p in plan.splits["train"])


_KILLED_HALFWAY = """
import os, signal
from controller.preparation import process
from controller.preparation.bucket_sort import BucketSort

def scatter_and_die(self):
    scatter(self)
    os.kill(os.getpid(), signal.SIGKILL)

scatter, BucketSort._scatter = BucketSort._scatter, scatter_and_die
BucketSort.__init__.__kwdefaults__["chunk_bytes"] = 1 << 17
process.main()
"""


@pytest.mark.slow
def test_a_killed_preparation_leaves_no_partial_data_set(tmp_path: Path, volumes: Volumes) -> None:
    """The next attempt removes the leftovers and gives the same partitions."""
    lines = "".join(f"r{n},{'x' * 100}\n" for n in range(5000))
    (tmp_path / "train.csv").write_text(f"id,word\n{lines}")
    train = Locator(metadata=str(tmp_path / "train.csv"))
    record = ExperimentRecord(name="one", locators=Locators(train=train))
    question = preparation_process._Question(
        record=record, known={}, request=REQUEST, weights=WEIGHTS, volumes=vars(volumes)
    )
    content = question.model_dump_json().encode()
    killed = subprocess.run([sys.executable, "-c", _KILLED_HALFWAY], input=content, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(volumes.scratch.rglob("*-sorted/*.arrow")) != []
    assert not (volumes.shared / "datasets").exists()
    again = prepared(record, volumes)
    assert list(volumes.scratch.iterdir()) == []
    other = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "other")})
    assert again == prepared(record, other)
    for part in again.splits["train"]:
        names = [one.metadata(again.dataset, "train", part.partition) for one in (volumes, other)]
        assert names[0].read_bytes() == names[1].read_bytes()


@pytest.mark.slow
def test_errors_keep_their_type_and_message(
    record: ExperimentRecord, volumes: Volumes, tmp_path: Path
) -> None:
    """The user sees no difference."""
    (tmp_path / "train.csv").write_text("key\n1\n2\n")
    with pytest.raises(MetadataError, match="no column 'id'"):
        prepared(record, volumes)
    (tmp_path / "train.csv").unlink()
    with pytest.raises(LocatorError, match=r"train\.csv"):
        prepared(record, volumes)


def test_an_unreadable_table_is_a_volume_failure(
    record: ExperimentRecord, volumes: Volumes, tmp_path: Path
) -> None:
    """The run pauses and names the table, so the error keeps its path. Reading this file raises EIO."""
    (tmp_path / "train.csv").unlink()
    (tmp_path / "train.csv").symlink_to("/proc/self/mem")
    with pytest.raises(VolumeError, match=r"train\.csv .* \(errno 5\)") as raised:
        prepared(record, volumes)
    assert raised.value.path == str(tmp_path / "train.csv")


def test_a_read_only_folder_of_data_sets_is_a_volume_failure(
    record: ExperimentRecord, volumes: Volumes
) -> None:
    """The finished files cannot be moved there; after the volume has recovered, the plan is made."""
    with small_volume(volumes.shared / "datasets", "1m") as folder:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(VolumeError, match=rf"{folder}.*Read-only") as raised:
            prepared(record, volumes)
        assert Path(raised.value.path).is_relative_to(volumes.shared)
    prepared(record, volumes)


@pytest.mark.slow
def test_an_unexpected_error_is_reported(
    record: ExperimentRecord, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The caller gets type and message; the log gets the traceback."""
    (tmp_path / "volumes").write_text("a file where a folder should be")
    with pytest.raises(RuntimeError, match="NotADirectoryError"):
        prepared(record, Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}))
    assert "Traceback" in capfd.readouterr().err


def test_a_killed_preparation_names_the_memory_limit(
    record: ExperimentRecord, volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives no reason when it kills a process for memory."""
    _replace(monkeypatch, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    with pytest.raises(MetadataError, match=r"exit code -9\. .*controller\.resources\.limits\.memory"):
        prepared(record, volumes)


def test_an_unneeded_preparation_process_is_ended(
    record: ExperimentRecord, volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits at once, and its files are removed."""
    left = volumes.scratch / ".scratch-of-it"
    _replace(monkeypatch, "import time; time.sleep(600)")
    preparation = preparation_process.Preparation(record, {}, REQUEST, WEIGHTS, volumes)
    left.mkdir(parents=True)
    preparation.end()
    assert preparation._process.returncode == -signal.SIGKILL
    with pytest.raises(MetadataError):
        preparation.plan()
    assert not left.exists()


def _replace(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run another program in the process."""
    monkeypatch.setattr(
        preparation_process, "with_parent_death_signal", lambda _: [sys.executable, "-c", script]
    )

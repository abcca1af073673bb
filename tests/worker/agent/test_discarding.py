"""Old checkpoints are removed after a commit, and newer files stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import Position, TrainTask, VerificationTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult, VerificationOutcome
from cerebro.data.files.checkpoint_files import outdated
from cerebro.runtime.volumes import Volumes, checkpoint_file, sub_epoch_of
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.reports import Resources
from cerebro.worker.agent.settings import Settings
from cerebro.worker.agent.slot import Slot
from cerebro.worker.upkeep.checkpoint_removal import outdated_by


def name(sub_epoch: int, attempt: int = 1) -> str:
    """Return the file name of a sub-epoch's checkpoint."""
    return checkpoint_file(
        sub_epoch=sub_epoch, epoch=1 + sub_epoch // 2, partition=sub_epoch % 2, attempt=attempt
    )


def test_named_and_newer_checkpoints_stay(tmp_path: Path) -> None:
    """Earlier sub-epochs and their temporary files are removed; this and later sub-epochs and other files stay."""
    names = [name(sub_epoch) for sub_epoch in range(5)]
    for file in (*names, f".{names[0]}.1-2.aside", f".{names[4]}.1-2.aside", "notes.txt", "useful.pt"):
        (tmp_path / file).touch()
    outdated_names = {path.name for path in outdated(tmp_path, 3, {names[1], "absent"})}
    assert outdated_names == {names[0], names[2], f".{names[0]}.1-2.aside"}


@given(sub_epoch=st.integers(0, 10**9), epoch=st.integers(1, 10**6), attempt=st.integers(1, 10**6))
def test_a_file_name_has_its_sub_epoch(sub_epoch: int, epoch: int, attempt: int) -> None:
    """Temporary names are covered too."""
    file = checkpoint_file(sub_epoch=sub_epoch, epoch=epoch, partition=0, attempt=attempt)
    assert sub_epoch_of(file) == sub_epoch_of(f".{file}.7-1a2b.aside") == sub_epoch


@pytest.mark.parametrize(("found", "goes"), [((), True), (("state",), False), (None, False)])
def test_a_successful_verification_removes_the_files_only_it_needed(
    tmp_path: Path, found: tuple[str, ...] | None, goes: bool
) -> None:
    """Files are removed by name only.

    After a difference they stay, because another worker may have to repeat the sub-epoch.
    """
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    reference = CheckpointRef(name="one/fit-1/m00/u00001.pt", checksum="-", size=1)
    body = VerificationTask(
        key="fit-1/verify/m00/e1/p1/reexecution-1",
        experiment="one",
        run="fit-1",
        model="m00",
        hyperparams={},
        code="0" * 64,
        dataset="d",
        seed=0,
        hang_timeout_s=1.0,
        epoch=1,
        partition=1,
        sub_epoch=1,
        position=Position(),
        checkpoint=None,
        expected=reference,
        metrics={},
        threads=1,
        is_exact=True,
        spare=("one/fit-1/m00/u00000.pt",),
    )
    item = InboxItem(seq=1, experiment="one", task=body.key, attempt=1, body=body)
    outcome = None if found is None else VerificationOutcome(is_exact=True, differences=found)
    expected = (volumes.checkpoint("one/fit-1/m00/u00000.pt"),) if goes else ()
    assert outdated_by(volumes, item, TaskResult(verification=outcome)) == expected


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(".")],
)
def test_entries_that_are_no_files_reference_no_base(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """It neither blocks the removal nor prevents it."""
    base = f"frozen-{'0' * 16}-5-{'0' * 8}"
    for file in (name(1), base):
        (tmp_path / file).touch()
    make(tmp_path / name(3))
    assert {path.name for path in outdated(tmp_path, 2, ())} == {name(1), base}


# --- the agent's loop --------------------------------------------------------------------------------


class Store:
    """A store with a scripted outcome of the commit, which runs an action first."""

    def __init__(self, answer: str, first: Any) -> None:
        self._answer, self._first = answer, first
        self.reports: list[api.Report] = []

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        self.reports += request.steps
        if any(step.op != "start" for step in request.steps):
            self._first()
        outcomes = tuple(
            api.StepOutcome.model_validate({"outcome": "done" if step.op == "start" else self._answer})
            for step in request.steps
        )
        return api.ReportAnswer(current=True, outcomes=outcomes)


def item(sub_epoch: int, keep: tuple[str, ...] = ()) -> InboxItem:
    body = TrainTask(
        key="fit-1/train/m00/e1/p0", experiment="one", run="fit-1", model="m00", hyperparams={}, code="c" * 64,
        dataset="d", seed=0, hang_timeout_s=1.0, epoch=1, partition=0, sub_epoch=sub_epoch,
        position=Position(), checkpoint=None, keep=keep,
    )  # fmt: skip
    return InboxItem(seq=1, experiment="one", task=body.key, attempt=1, body=body)


@pytest.mark.parametrize(
    ("answer", "ends_well", "left"),
    [
        ("done", True, {name(3), name(4, 2), name(5)}),
        ("already", True, {name(3), name(4, 2), name(5)}),
        ("refused", True, {name(2), name(3), name(4), name(4, 2), name(5)}),
        ("done", False, {name(2), name(3), name(4), name(4, 2), name(5)}),
    ],
)
def test_only_an_accepted_commit_removes_and_only_older_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, ends_well: bool, left: set[str]
) -> None:
    """The previous sub-epoch is repeated elsewhere during the commit; its new file stays with any outcome."""
    settings = Settings.from_environment(
        {"CEREBRO_TOKEN": "t", "CEREBRO_WORKER": "w", "CEREBRO_VOLUMES": str(tmp_path)}
    )
    folder = settings.volumes.model_checkpoints("one", "fit-1", "m00")
    folder.mkdir(parents=True)
    for sub_epoch in (2, 3, 4, 5):
        (folder / name(sub_epoch)).touch()
    store: Any = Store(answer, (folder / name(4, 2)).touch)
    agent = Agent(store, settings, {}, Resources(devices=WorkerDevices(1), replicas=tuple, host="h", pid=1))
    result = TaskResult() if ends_well else Failure(kind=FailureKind.CRASH, message="it died")
    slot = Slot(agent._shared, (0,))
    monkeypatch.setattr(slot.execution, "run", lambda item: [(item, result)])
    given = [item(5, keep=(f"one/fit-1/m00/{name(3)}",))]
    monkeypatch.setattr(
        slot.mailbox, "next", lambda behind=None: given.pop() if given else agent.stop("done")
    )
    monkeypatch.setattr(slot, "_await_item", slot.mailbox.next)
    slot.work()
    agent._shared.discarder._thread.shutdown()
    assert {path.name for path in folder.iterdir()} == left

"""Deleting an experiment with its files, under controller crashes and without effects on others."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from cerebro.contract.events import DeletionRequested, RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators, Reclaim
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.errors import ConflictError, NotFoundError
from cerebro.runtime import trash
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from controller.storage import deletion
from controller.storage.deletion import Deletion
from research.simulation.store import VirtualStore
from tests.clocks import set_monotonic
from tests.state.stories import SHA
from tests.waiting import HANG_S


class Ward:
    """Two experiments with all kinds of files, and controllers that delete."""

    def __init__(self, folder: Path) -> None:
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        self.store = VirtualStore(lambda: 0.0)
        self.term = self.store.lead("controller-0", 1e9).term
        self.forgotten: list[str] = []
        for name in ("one", "two"):
            self.make(name)

    def make(self, name: str) -> None:
        """Create an experiment with an ended run and its files."""
        self.store.create_experiment(
            ExperimentRecord(name=name, locators=Locators(train=Locator(metadata="m.csv")))
        )
        request = EtlRequest(code=SHA, code_fingerprint=SHA)
        self.store.append(name, RunRequested(run="etl-1", request=request))
        started = RunStarted(run="etl-1", plan=EtlPlan(dataset=f"{name}-d", splits={}))
        steps = (api.Note(event=started), api.Note(event=RunFinished(run="etl-1", outcome="finished")))
        self.store.decide(name, api.DecideRequest(term=self.term, after=1, steps=steps))
        for path in self.files(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    def files(self, name: str) -> list[Path]:
        """Return one file of the experiment on each volume."""
        volumes = self.volumes
        return [
            volumes.checkpoint(f"{name}/fit-1/m00/u0.pt"),
            volumes.model_metrics(name, "fit-1", "m00") / "events",
            volumes.task_log(name, "etl-1/etl/train/p0", 1),
            volumes.shared / "predictions" / name / "predict-1" / "m00.arrow",
            volumes.metadata(f"{name}-d", "train", 0),
        ]

    def controller(self) -> Deletion:
        """Return a new controller without knowledge."""
        return Deletion(cast(KvsClient, self.store), self.volumes, self.forgotten.append, self.renew)

    def renew(self) -> int:
        """Renew the leadership."""
        return self.store.lead("controller-0", 1e9).term

    def is_taken_over(self) -> None:
        """Make another controller the leader."""
        self.store.lead("controller-0", -1.0)
        assert self.store.lead("controller-1", 1e9).term == self.term + 1

    def left(self, name: str) -> list[Path]:
        """Return the experiment's files at their original paths."""
        return [path for path in self.files(name) if path.exists()]

    def trash(self) -> list[Path]:
        """Return moved files that are not removed yet."""
        volumes = self.volumes
        roots = (volumes.shared, volumes.checkpoints, volumes.metrics, volumes.logs)
        return [path for root in roots for path in volumes.trash(root).rglob("*")]


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def finish(made: Deletion, ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the controller repeatedly until the deletion is complete."""
    clock = itertools.count(time.monotonic(), 100.0)
    set_monotonic(monkeypatch, lambda: next(clock), trash, deletion)
    for _ in range(5):
        made.reconcile(ward.term)
        if made.removal.thread.ident is not None:
            made.removal.thread.join()
    assert not ward.trash()


def test_deletion_removes_the_files_of_one_experiment_only(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data set is deleted too, projections forget it first, and its requester is recorded."""
    ward.store.append("one", DeletionRequested(by="ann"))
    finish(ward.controller(), ward, monkeypatch)
    assert ward.left("one") == []
    assert ward.left("two") == ward.files("two")
    assert ward.forgotten == ["one"]
    with pytest.raises(NotFoundError):
        ward.store.experiment("one")
    assert [(entry.by, entry.what) for entry in ward.store.audit()] == [("ann", "deleted experiment one")]


def test_the_store_is_queried_rarely_during_a_removal(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop with running sub-epochs calls `reconcile` many times a second."""
    may_end, requests, deleting = threading.Event(), [], ward.store.deleting
    monkeypatch.setattr(trash, "empty", lambda trash: may_end.wait(HANG_S))
    ward.store.append("one", DeletionRequested(by="ann"))
    remover = ward.controller()
    now = time.monotonic()
    set_monotonic(monkeypatch, lambda: now, trash, deletion)

    def counted() -> tuple[str, ...]:
        requests.append(now)
        return deleting()

    monkeypatch.setattr(ward.store, "deleting", counted)
    for seconds in range(3):
        now += seconds
        for _ in range(10):
            remover.reconcile(ward.term)
    # Once to delete, once to find nothing, and once a second while the thread works.
    assert len(requests) == 4
    may_end.set()
    remover.removal.thread.join()


class Killed(BaseException):
    """The controller dies."""


def deaths() -> Iterator[int]:
    """Yield the number of effects before a crash."""
    yield from range(12)


@pytest.mark.parametrize("effects", deaths())
def test_an_interrupted_deletion_is_finished(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, effects: int
) -> None:
    """The controller crashes before any of its effects; the next one finishes the deletion."""
    left = [effects]

    def or_die(effect: object) -> object:
        def call(*given: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return effect(*given)  # type: ignore[operator]

        return call

    ward.store.append("one", DeletionRequested(by="ann"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", or_die(Path.rename))
        patch.setattr(ward.store, "delete_experiment", or_die(ward.store.delete_experiment))
        patch.setattr(trash, "empty", lambda trash: None)
        deletion = ward.controller()
        try:
            for _ in range(3):
                deletion.reconcile(ward.term)
        except Killed:
            pass
    finish(ward.controller(), ward, monkeypatch)
    assert ward.left("one") == []
    assert ward.left("two") == ward.files("two")
    assert ward.store.deleting() == ()
    assert len(ward.store.audit()) == 1


def test_a_new_experiment_with_the_same_name_keeps_its_files(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user creates it while the old files are still in removal."""
    ward.store.append("one", DeletionRequested(by="ann"))
    deletion = ward.controller()
    with monkeypatch.context() as patch:
        patch.setattr(trash, "empty", lambda trash: None)
        for _ in range(3):
            deletion.reconcile(ward.term)
    ward.make("one")
    assert ward.trash()
    finish(ward.controller(), ward, monkeypatch)
    assert ward.left("one") == ward.files("one")


def test_a_controller_that_lost_leadership_deletes_nothing(ward: Ward) -> None:
    """It does not move files either, and the loop learns of the new leader."""
    ward.store.append("one", DeletionRequested(by="ann"))
    deletion = ward.controller()
    ward.is_taken_over()
    with pytest.raises(ConflictError, match="term"):
        deletion.reconcile(ward.term)
    assert ward.left("one") == ward.files("one")
    assert ward.store.deleting() == ("one",)


def test_an_experiment_recreated_under_another_leader_stays(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other leader deleted the experiment and a user reused the name; then this controller led again."""
    ward.store.append("one", DeletionRequested(by="ann"))
    deletion, deleting = ward.controller(), ward.store.deleting
    listed: list[tuple[str, ...]] = []

    def slow() -> tuple[str, ...]:
        if not listed:
            listed.append(deleting())
            ward.is_taken_over()
            ward.store.delete_experiment("one", ward.term + 1)
            ward.store.create_experiment(
                ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
            )
            ward.store.lead("controller-1", -1.0)
            return listed[0]
        return deleting()

    monkeypatch.setattr(ward.store, "deleting", slow)
    with pytest.raises(ConflictError, match="term"):
        deletion.reconcile(ward.term)
    assert ward.left("one") == ward.files("one")


def test_a_data_set_in_use_under_another_leader_stays(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of unused data sets may be outdated."""
    ward.store.append("one", DeletionRequested(by="ann"))
    deletion, reclaim = ward.controller(), ward.store.reclaim
    deletion.reconcile(ward.term)

    def slow() -> Reclaim:
        found = reclaim()
        ward.is_taken_over()
        return found

    monkeypatch.setattr(ward.store, "reclaim", slow)
    with pytest.raises(ConflictError, match="term"):
        deletion.reconcile(ward.term)
    assert ward.volumes.metadata("one-d", "train", 0).exists()


def test_deletion_retries_an_unwritable_volume(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work continues, and the experiment is still shown as being deleted."""
    ward.store.append("one", DeletionRequested(by="ann"))
    deletion = ward.controller()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _refuse)
        deletion.reconcile(ward.term)
    assert ward.store.deleting() == ("one",)
    finish(deletion, ward, monkeypatch)
    assert ward.left("one") == []


def _refuse(*_: object) -> None:
    raise PermissionError("read-only file system")

"""Removal of pruned checkpoints from disk, also after interruptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from threading import Event as Gate
from typing import Any, cast

import pytest

from cerebro.contract.events import Event
from cerebro.contract.search import ASHA
from cerebro.data.files.base_file import Layout, Range, base_namer
from cerebro.data.files.durable import Written
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import Model, ModelState, Run
from cerebro.state.experiment import fold
from cerebro.state.models.compaction import compact
from cerebro.state.models.completed_sub_epoch import CheckpointFile, ReturnedMetrics
from cerebro.state.models.progress import Lineage
from controller.loop.loop import Controller
from controller.planning import SpawnedProcess
from controller.settings import Settings
from controller.storage import pruned_files
from controller.storage.pruned_files import Leftovers, PrunedFiles
from research.simulation.scenario import EXPERIMENT as SIMULATED
from research.simulation.store import VirtualStore
from tests.controller.searches import fit_of, search_of, simulation
from tests.controller.test_loop import Nobody
from tests.state.completed_sub_epochs import COMPLETED
from tests.waiting import HANG_S

EXPERIMENT = "one"
MADE: list[PrunedFiles] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the `PrunedFiles` of each test."""
    yield
    while MADE:
        MADE.pop().close()


@lru_cache
def log() -> tuple[Event, ...]:
    """Return the log of a finished search."""
    sim = simulation(search_of(ASHA(eta=2), samples=6, keep=2), epochs=2)
    fit_of(sim)
    return sim.log


class Disk:
    """A finished search with its models' files; some need frozen-weights files."""

    def __init__(self, folder: Path) -> None:
        self.run: Run = fold(SIMULATED, log()).runs["fit-1"]
        self.volumes = Volumes(**dict.fromkeys(Volumes.__dataclass_fields__, folder))
        for model in self.run.models.values():
            model.checkpoints.removed = {self._named(model.id, name) for name in model.checkpoints.removed}
            for number, sub_epoch in enumerate(model.sub_epochs):
                file = sub_epoch.checkpoint
                model.sub_epochs.recent[number] = sub_epoch._replace(
                    checkpoint=file._replace(name=self._named(model.id, file.name))
                )
            self._fill(model.id)

    def _named(self, model: str, simulated: str) -> str:
        """Return the file name that a worker would use."""
        sub_epoch, attempt = simulated.split("/")[1].split("-")
        return f"{EXPERIMENT}/fit-1/{model}/u{int(sub_epoch[1:]):05d}-e001-p0000-{attempt}.pt"

    def _fill(self, model: str) -> None:
        found = self.run.models[model]
        folder = self.volumes.model_checkpoints(EXPERIMENT, "fit-1", model)
        folder.mkdir(parents=True)
        bases = [base_namer()(Written(num_bytes=5, checksum=f"xxh3_64:{digit * 16}")) for digit in "01"]
        for name in bases:
            (folder / name).write_bytes(b"12345")
        for number, sub_epoch in enumerate(found.sub_epochs):
            layout = Layout(
                base=bases[number == len(found.sub_epochs) - 1],
                size=5,
                ranges=(Range(start=0, size=5, at=0),),
            )
            self.volumes.checkpoint(sub_epoch.checkpoint.name).write_bytes(layout.encoded())
        # A savepoint of a failed attempt.
        (folder / f"u{len(found.sub_epochs):05d}-e001-p0000-a1.s000004.pt").touch()
        (folder / f".u{len(found.sub_epochs):05d}-e001-p0000-a2.pt.7-1a.aside").touch()

    def files(self, model: str) -> set[str]:
        """Return the file names in a model's folder."""
        folder = self.volumes.model_checkpoints(EXPERIMENT, "fit-1", model)
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def all_files(self) -> dict[str, set[str]]:
        """Map models to their files, without empty folders."""
        return {model: found for model in self.run.models if (found := self.files(model))}

    def pruned(self, leads: Callable[[int], bool] = lambda term: True, **more: Any) -> PrunedFiles:
        """Return the file remover of a new leader."""
        MADE.append(PrunedFiles(self.volumes, leads, **more))
        return MADE[-1]

    def reconcile(self, files: PrunedFiles) -> None:
        """Remove pruned files and wait for completion."""
        files.reconcile(EXPERIMENT, self.run, 1)
        self.wait(files)

    def wait(self, files: PrunedFiles) -> None:
        """Wait until all submitted removals are done."""
        files._thread.submit(lambda: None).result()  # the thread executes one task after another


def test_pruning_keeps_the_best_models_checkpoints_and_frozen_weights(tmp_path: Path) -> None:
    """The other models lose all files and folders: checkpoints, savepoints, frozen weights and leftovers."""
    disk = Disk(tmp_path)
    best = disk.run.best_models(2)
    disk.reconcile(disk.pruned())
    found = disk.all_files()
    assert set(found) == {model.id for model in best}
    for model in best:
        kept = {Path(name).name for name in disk.run.kept_checkpoints(model)}
        checkpoints = {name for name in found[model.id] if name.endswith("-a1.pt") or name in kept}
        assert {name for name in checkpoints if not name.startswith(".")} == kept
        # The model may continue, so its frozen weights and savepoints stay until the next commit.
        assert any(name.startswith("frozen-") for name in found[model.id])
    others = [model.id for model in disk.run.models.values() if model not in best]
    assert others
    assert not any(disk.volumes.model_checkpoints(EXPERIMENT, "fit-1", model).exists() for model in others)


def test_a_frozen_weights_file_stays_while_a_checkpoint_names_it(tmp_path: Path) -> None:
    """A test still reads the best epoch of this finished model."""
    disk = Disk(tmp_path)
    model = next(each for each in disk.run.models.values() if each.is_pruned)
    read = model.sub_epochs[-2].checkpoint.name
    left = Leftovers.of(disk.volumes, EXPERIMENT, disk.run, model)
    left = Leftovers(model=model.id, folder=left.folder, keep=frozenset({Path(read).name}), named=left.named)
    left.remove()
    (base,) = disk.files(model.id) - {Path(read).name}
    assert base.startswith("frozen-0000")
    left.remove()
    assert disk.files(model.id) == {Path(read).name, base}


def test_the_next_controller_finishes_an_interrupted_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may crash between any two files."""
    whole = Disk(tmp_path / "whole")
    whole.reconcile(whole.pruned())
    expected, unlink = whole.all_files(), Path.unlink
    for dies_at in (0, 1, 6, 15):
        disk, left = Disk(tmp_path / str(dies_at)), iter(range(dies_at))

        def dying(path: Path, missing_ok: bool = False, *, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError("the controller is dead")
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", dying)
        disk.reconcile(disk.pruned())
        monkeypatch.setattr(Path, "unlink", unlink)
        assert disk.all_files() != expected
        disk.reconcile(disk.pruned())
        assert _without_draws(disk.all_files()) == _without_draws(expected)


def _without_draws(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Drop the random suffix of frozen-weights files."""
    return {model: {name.rpartition("-")[0] for name in names} for model, names in found.items()}


def test_a_controller_that_lost_leadership_removes_no_files(tmp_path: Path) -> None:
    """A new experiment with the same name may own the files. The next leader removes them."""
    disk = Disk(tmp_path)
    before = disk.all_files()
    leading: list[int] = []
    files = disk.pruned(lambda term: term in leading)
    disk.reconcile(files)
    assert disk.all_files() == before
    # The run waits for the removal.
    assert files.is_busy(EXPERIMENT, "fit-1")
    leading.append(1)
    disk.reconcile(files)
    assert not files.is_busy(EXPERIMENT, "fit-1")
    assert disk.all_files() != before


def test_an_unremovable_file_blocks_neither_other_removals_nor_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller retries while the run is open."""
    disk = Disk(tmp_path)
    best = {model.id for model in disk.run.best_models(2)}
    stuck = next(each.id for each in disk.run.models.values() if each.is_pruned)
    obstacle = disk.volumes.model_checkpoints(EXPERIMENT, "fit-1", stuck) / "u00000-e001-p0000-a9.pt"
    obstacle.mkdir()
    files = disk.pruned()
    monkeypatch.setattr(pruned_files, "_TRY_AGAIN_S", 0)
    disk.reconcile(files)
    assert set(disk.all_files()) == best | {stuck}
    assert not files.is_busy(EXPERIMENT, "fit-1")
    obstacle.rmdir()
    disk.reconcile(files)
    assert set(disk.all_files()) == best


def test_the_run_end_waits_for_models_pruned_during_a_removal(tmp_path: Path) -> None:
    """After the run's end no removal would be submitted."""
    disk, gate = Disk(tmp_path), Gate()
    best = {model.id for model in disk.run.best_models(2)}
    files = disk.pruned(lambda term: gate.wait(HANG_S))
    disk.run.checkpoints.pruned, later = disk.run.checkpoints.pruned[:1], disk.run.checkpoints.pruned[1:]
    files.reconcile(EXPERIMENT, disk.run, 1)
    disk.run.checkpoints.pruned += later
    files.reconcile(EXPERIMENT, disk.run, 1)
    gate.set()
    disk.wait(files)
    assert set(disk.all_files()) > best
    assert files.is_busy(EXPERIMENT, "fit-1")
    assert files.wake_s() < 1
    disk.reconcile(files)
    assert not files.is_busy(EXPERIMENT, "fit-1")
    assert set(disk.all_files()) == best


def test_an_ended_run_is_dropped_after_its_last_removal(tmp_path: Path) -> None:
    """It happens once its last files are removed; before that, a deletion can cancel the removal. A reopened
    run is checked again."""
    disk, gate, runs = Disk(tmp_path), Gate(), {(EXPERIMENT, "fit-1")}
    files = disk.pruned(lambda term: gate.wait(HANG_S))
    files.reconcile(EXPERIMENT, disk.run, 1)
    files.keep(())
    assert files.is_busy(EXPERIMENT, "fit-1")
    gate.set()
    disk.wait(files)
    pruned_model = next(model.id for model in disk.run.models.values() if model.is_pruned)
    folder = disk.volumes.model_checkpoints(EXPERIMENT, "fit-1", pruned_model)
    folder.mkdir()
    for kept in (runs, ()):
        assert folder.exists()
        files.keep(kept)
        disk.reconcile(files)
    assert not folder.exists()


def test_the_loop_forgets_runs_that_have_ended(tmp_path: Path) -> None:
    """Otherwise the loop would check all past runs at each turn."""
    disk = Disk(tmp_path)
    settings = Settings(server="-", token="-", holder="me", tick_s=0, volumes=disk.volumes)
    controller = Controller(cast(KvsClient, VirtualStore(lambda: 0.0)), settings, Nobody(), SpawnedProcess())
    MADE.append(controller._pruned)
    controller._admit()  # start to lead
    disk.reconcile(controller._pruned)
    assert controller._pruned._runs
    controller._admit()
    assert not controller._pruned._runs


def test_the_run_end_waits_while_files_are_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow volume may take any time, but a hanging volume is abandoned."""
    disk, unlink = Disk(tmp_path), Path.unlink
    now, was_busy = [0.0], list[bool]()

    def slow(path: Path, missing_ok: bool = False) -> None:
        now[0] += 50
        was_busy.append(files.is_busy(EXPERIMENT, "fit-1"))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", slow)
    files = disk.pruned(clock=lambda: 1 + now[0])
    disk.reconcile(files)
    assert now[0] > 500
    assert all(was_busy)
    assert not files.is_busy(EXPERIMENT, "fit-1")

    def hangs(term: int) -> bool:
        now[0] += 61
        hung.append(files.is_busy(EXPERIMENT, "fit-1"))
        return True

    hung = list[bool]()
    files = Disk(tmp_path / "hangs").pruned(hangs, clock=lambda: 1 + now[0])
    disk.reconcile(files)
    assert hung
    assert not any(hung)


def test_the_parent_checkpoint_of_a_waiting_clone_survives_compaction(tmp_path: Path) -> None:
    """Only the clone still refers to that sub-epoch, in the middle of an old epoch of its parent."""
    run = fold(SIMULATED, log()).runs["fit-1"]
    partitions = tuple(sorted(run.fit_rows))
    parent = trained("m00", partitions, epochs=1, more=1)
    clone = Model(
        id="m01",
        hyperparams=parent.hyperparams,
        epochs=6,
        partitions=partitions,
        lineage=Lineage(parent="m00"),
    )
    clone.inherit(parent, len(parent.sub_epochs))
    origin = parent.sub_epochs[-1].checkpoint.name
    for sub_epoch in trained("m00", partitions, epochs=5).sub_epochs[len(parent.sub_epochs) :]:
        parent.add(sub_epoch)
    parent.state, parent.checkpoints.removed = ModelState.STOPPED, {parent.sub_epochs[-1].checkpoint.name}
    run.models, run.checkpoints.young, run.checkpoints.pruned = (
        {"m00": parent, "m01": clone},
        {"m01": clone},
        [],
    )
    volumes = Volumes(**dict.fromkeys(Volumes.__dataclass_fields__, tmp_path))
    before = Leftovers.of(volumes, EXPERIMENT, run, parent)
    assert parent.is_pruned
    assert Path(origin).name in before.keep
    compact(parent, 3, run.fit_rows)
    assert not parent.sub_epochs.knows(clone.lineage.sub_epochs - 1)
    assert Path(origin).name in Leftovers.of(volumes, EXPERIMENT, run, parent).keep


def trained(name: str, partitions: tuple[int, ...], *, epochs: int, more: int = 0) -> Model:
    """A model after `epochs` epochs and `more` sub-epochs of the next."""
    model = Model(id=name, hyperparams={"batch_size": 1}, epochs=6, partitions=partitions)
    for sub_epoch in range(epochs * len(partitions) + more):
        model.add(
            COMPLETED._replace(
                epoch=sub_epoch // len(partitions) + 1,
                partition=partitions[sub_epoch % len(partitions)],
                returned=ReturnedMetrics(("accuracy",), (0.5,)),
                checkpoint=CheckpointFile(
                    f"{EXPERIMENT}/fit-1/{name}/u{sub_epoch:05d}-e001-p0000-a1.pt", "c", 1
                ),
                started=float(sub_epoch),
                ended=sub_epoch + 1.0,
            )
        )
    return model

"""Train sub-epochs again as before: in this process, or by parallel plan in the same number of processes.

`cerebro.client.replay` calls `Repeat.train` on the user's machine; workers never run this. A rank's process is ``python
-m cerebro.worker.training.ranks.repetition FOLDER RANK`` and reads ``FOLDER/request.json``. Rank 0 writes the state
after the sub-epoch, and a reference to it in ``FOLDER/trained.json``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cerebro.contract.base import Contract
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import Hyperparameters, drops_last
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks.bodies import Position, Validation
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.loader import MergedLoader, PartitionLoader
from cerebro.data.merged import Merged
from cerebro.errors import ConflictError
from cerebro.keras.backend import CORES
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.isolation.process_exit import end_after
from cerebro.spec import SubEpochSpec
from cerebro.state import CompletedSubEpoch, Model, position_of
from cerebro.techniques import Group, resolve
from cerebro.techniques.ranks import Alone, RankGroup
from cerebro.usercode.encoding import decode
from cerebro.usercode.fitted import restore_fitted
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.frameworks import takes_threads
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.ranks.sub_epoch_share import SubEpochShare
from cerebro.worker.training.seeds import has_drawn, order_seed, sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, default_device, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee

STATE, TRAINED, REQUEST = "state.pt", "trained.json", "request.json"
_PROGRAM = "cerebro.worker.training.ranks.repetition"


class _Request(Contract):
    """A sub-epoch. `code` and `technique` are encoded user code; `start` is the earlier state's file, `None`
    for a new model.
    """

    code: str
    technique: str = ""
    archive: str = ""
    misc: str = ""
    fitted: str = ""
    """File with the verified result of `ETLSpec.fit`, or ""."""
    parallel_plan: ParallelPlan
    hyperparams: Hyperparameters
    seed: int
    has_shared_order: bool = False
    model: str
    epoch: int
    partitions: tuple[int, ...]
    folders: tuple[str, ...]
    rows: tuple[int, ...]
    """Number of rows in each folder."""
    sub_epoch: int
    position: Position
    validation: Validation | None = None
    start: CheckpointRef | None
    threads: int


@dataclass(kw_only=True)
class Repeat:
    """Trains models again.

    Attributes:
        technique: returns the encoded code of a user's own technique by its hash.
        spec, code: user code, decoded and encoded.
        folders, rows: folder and number of rows of each partition.
        models: all models of the run: a clone of another model's checkpoint trains as that model first.
        cores: threads for sub-epochs without a logged number of threads.
        is_single: True to use one device for all parallel plans.
        fitted: file with the result of `ETLSpec.fit` for the data set, if any.
    """

    technique: Callable[[str], str]
    spec: SubEpochSpec
    code: str
    request: FitRequest
    folders: Mapping[int, Path]
    rows: Mapping[int, int]
    models: Mapping[str, Model] = field(default_factory=dict)
    archive: str
    cores: int
    is_single: bool
    is_random: bool = False
    """True once a sub-epoch has drawn random numbers in this process."""
    fitted: Path | None = None

    def train(self, model: Model, folder: Path) -> Trainee:
        """Train all sub-epochs of a model, with `folder` for states between sub-epochs with a parallel plan."""
        previous, trainee = self._owned(model, 0), self._new(model, 0)
        for sub_epoch, completed in enumerate(model.sub_epochs):
            now = self._owned(model, sub_epoch)
            plan = completed.parallel_plan
            if plan is not None and not plan.fused_models and not self.is_single:
                # The state contains earlier hyperparameters, so the ranks notice changes.
                start = checkpoints.save(folder, f"u{sub_epoch}.pt", trainee.state()) if sub_epoch else None
                found = self._by_parallel_plan(model, sub_epoch, plan, folder, start)
                trainee = self._new(model, sub_epoch)
                restore(trainee, checkpoints.load(folder, found, default_device()))
            else:
                if now != previous:
                    # As on a worker: create a new model with the previous state.
                    state, trainee = trainee.state(), self._new(model, sub_epoch)
                    restore(trainee, state)
                self._sub_epoch(trainee, model, sub_epoch, completed)
            previous = now
        return trainee

    def _owned(self, model: Model, sub_epoch: int) -> tuple[str, int, Hyperparameters]:
        """Return the owner of a sub-epoch (the model or an ancestor), its seed and the hyperparameters."""
        owner = model
        while sub_epoch < owner.lineage.sub_epochs:
            owner = self.models[owner.lineage.parent]
        return owner.id, owner.training_seed(self.request.seed), model.hyperparams_of(sub_epoch)

    def _new(self, model: Model, sub_epoch: int) -> Trainee:
        name, seed, hyperparams = self._owned(model, sub_epoch)
        return create(self.spec, hyperparams, seed=seed, model=name, device=default_device())

    def _sub_epoch(
        self, trainee: Trainee, model: Model, sub_epoch: int, completed: CompletedSubEpoch
    ) -> None:
        name, seed, hyperparams = self._owned(model, sub_epoch)
        size = hyperparams["batch_size"]
        assert isinstance(size, int)
        # Use the sub-epoch's number of threads: a sum that is split differently rounds differently.
        threads = completed.cores or self.cores
        if not takes_threads(trainee.modules, threads):
            raise ConflictError(
                f"sub-epoch {sub_epoch} of {model.id} was computed with {threads} threads, and TensorFlow computes "
                f"with "
                f"{os.environ[CORES]} in this process, as in the run's first sub-epoch: it rounds differently"
            )
        torch.set_num_threads(threads)
        epoch, is_shared = completed.epoch, self.request.has_shared_order
        seeds = [order_seed(seed, name, epoch, p, is_shared=is_shared) for p in completed.partitions]
        folders = [self.folders[partition] for partition in completed.partitions]
        drop_last = drops_last(hyperparams)
        loader = (
            MergedLoader(folders, batch_size=size, seeds=seeds, device=default_device(), drop_last=drop_last)
            if completed.other_members
            else PartitionLoader(
                folders, batch_size=size, seed=seeds[0], device=default_device(), drop_last=drop_last
            )
        )
        train_sub_epoch(
            self.spec,
            trainee,
            InstrumentedLoader(
                loader,
                epoch=completed.epoch,
                sub_epoch=sub_epoch,
                position=position_of(model, self.rows, sub_epoch),
                savepoints=Savepoints(trainee, validation=_validation(model, completed)),
            ),
            hyperparams,
            seed=seed,
            model=name,
            epoch=completed.epoch,
            partition=completed.partition,
        )
        self.is_random = self.is_random or has_drawn(sub_epoch_seed(seed, name, epoch, completed.partition))

    def _by_parallel_plan(
        self,
        model: Model,
        sub_epoch: int,
        parallel_plan: ParallelPlan,
        folder: Path,
        start: CheckpointRef | None,
    ) -> CheckpointRef:
        """Train in the parallel plan's processes and return the state's file in `folder`.

        Raises:
            ConflictError: it cannot be trained in this way here.
        """
        completed, place = model.sub_epochs[sub_epoch], folder / f"u{sub_epoch}"
        name, seed, hyperparams = self._owned(model, sub_epoch)
        place.mkdir()
        if start is not None:
            (place / start.name).symlink_to(folder / start.name)
        request = _Request(
            code=self.code,
            technique=self.technique(parallel_plan.code) if parallel_plan.code else "",
            archive=self.archive,
            misc=self.spec.misc_dir or "",
            fitted="" if self.fitted is None else str(self.fitted),
            parallel_plan=parallel_plan,
            hyperparams=hyperparams,
            seed=seed,
            has_shared_order=self.request.has_shared_order,
            model=name,
            epoch=completed.epoch,
            partitions=completed.partitions,
            folders=tuple(str(self.folders[partition]) for partition in completed.partitions),
            rows=tuple(self.rows[partition] for partition in completed.partitions),
            sub_epoch=sub_epoch,
            position=position_of(model, self.rows, sub_epoch),
            validation=_validation(model, completed),
            start=start,
            threads=completed.cores or self.cores,
        )
        (place / REQUEST).write_text(request.model_dump_json())
        command = [sys.executable, "-m", _PROGRAM, str(place)]
        ranks = [
            subprocess.Popen(
                with_parent_death_signal([*command, str(rank)]), stderr=subprocess.PIPE, text=True
            )
            for rank in range(parallel_plan.ranks)
        ]
        outputs = [rank.communicate()[1] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            last = next((text for rank, text in zip(ranks, outputs, strict=True) if rank.returncode), "")
            raise ConflictError(
                f"sub-epoch {sub_epoch} of {model.id} ran by {parallel_plan.label}, and cannot be trained so here: "
                f"{last.strip()[-2000:]}\n"
                "To train it on one device and compare up to rounding: --tolerance 1e-4"
            )
        found = CheckpointRef.model_validate_json((place / TRAINED).read_text())
        (place / found.name).rename(folder / f"w{sub_epoch}.pt")
        return found.model_copy(update={"name": f"w{sub_epoch}.pt"})


def _validation(model: Model, sub_epoch: CompletedSubEpoch) -> Validation | None:
    if not sub_epoch.validated:
        return None
    return Validation(epoch=sub_epoch.validated, metrics=model.validation.metrics[sub_epoch.validated])


# --- one rank ----------------------------------------------------------------------------------------


def main(folder: Path, rank: int) -> None:
    """Train the requested sub-epoch as one rank, together with the others."""
    request = _Request.model_validate_json((folder / REQUEST).read_text())
    torch.set_num_threads(request.threads)
    if request.archive:
        sys.path.append(request.archive)
    spec: SubEpochSpec = decode(request.code)
    spec.misc_dir = request.misc
    if request.fitted:
        spec.fitted = restore_fitted(Path(request.fitted).read_bytes())
    spec.initialize_worker()
    group = _joined(folder, request.parallel_plan, rank)
    try:
        reference = _train(folder, request, spec, group)
    finally:
        group.leave()
    if reference is not None:
        (folder / TRAINED).write_text(reference.model_dump_json())


def _train(folder: Path, request: _Request, spec: SubEpochSpec, group: Group) -> CheckpointRef | None:
    technique = resolve(request.parallel_plan, lambda _: decode(request.technique))
    device = technique.made_on(group, request.parallel_plan.params)
    plain = create(
        spec, request.hyperparams, seed=request.seed, model=request.model, device=torch.device(device)
    )
    if request.start is not None:
        restore(plain, checkpoints.load(folder, request.start, torch.device(device)))
    trainee = prepare(spec, plain, technique, request.parallel_plan.params, group)
    number, share = 0, SubEpochShare(partition=request.partitions[0], share=trainee.share)
    if request.parallel_plan.workers > 1:  # a rank of a gang reads its worker's rows
        number, rank = divmod(group.rank, request.parallel_plan.ranks_here)
        share = SubEpochShare(
            partition=request.partitions[number],
            share=(rank, request.parallel_plan.ranks_here),
            merged=Merged(rows=request.rows, number=number),
        )
    loader = share.loader(
        [Path(request.folders[number])],
        hyperparams=request.hyperparams,
        seed=order_seed(
            request.seed,
            request.model,
            request.epoch,
            share.partition,
            is_shared=request.has_shared_order,
        ),
        model=request.model,
        device=torch.device(trainee.device or group.device),
    )
    feed = InstrumentedLoader(
        loader,
        epoch=request.epoch,
        sub_epoch=request.sub_epoch,
        position=request.position,
        savepoints=Savepoints(trainee, validation=request.validation),
    )
    feed.rank, feed.ranks = trainee.share
    train_sub_epoch(
        spec,
        trainee,
        feed,
        request.hyperparams,
        seed=request.seed,
        model=request.model,
        epoch=request.epoch,
        partition=request.partitions[0],
    )
    return trainee.save(folder, STATE)


def _joined(folder: Path, parallel_plan: ParallelPlan, rank: int) -> Group:
    gpus = torch.cuda.device_count()
    count = parallel_plan.workers * parallel_plan.size
    names = tuple(f"cuda:{number}" for number in range(count)) if gpus >= count else ("cpu",) * count
    if parallel_plan.processes == "one":
        return Alone(names)
    meeting = folder / "meeting"
    meeting.mkdir(exist_ok=True)
    return RankGroup.join(meeting, rank=rank, size=parallel_plan.ranks, device=names[rank])


if __name__ == "__main__":
    end_after(lambda: main(Path(sys.argv[1]), int(sys.argv[2])))

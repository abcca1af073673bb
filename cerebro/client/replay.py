"""Replay: a run trained again, each model in one process, partitions in the logged order, and compared bit for bit.

This is the proof behind hopping (seed paper, section 3.1, "Reproducibility"): the log of visits determines the weights.
No state is saved and loaded between sub-epochs here, nothing hops; what training does to a model is
`cerebro.worker.training.sub_epoch`, as in a worker. A sub-epoch that ran by a way is trained by that way again, in as
many processes (`cerebro.worker.training.repeating`); or on one device, and compared with a tolerance. If no volume of
this machine has a training partition, the replay preprocesses its rows again. User code runs in forks of the calling
process, without the sandbox of workers, so replay only your own experiments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cerebro.client.connection import Connection, connect
from cerebro.client.files import cache_folder
from cerebro.client.partition_rebuild import Remaking
from cerebro.client.session import Session
from cerebro.commands.chosen import chosen_fit, find_model
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.data.misc import fetch_misc
from cerebro.data.partitions import find_partitions
from cerebro.errors import ConflictError
from cerebro.keras.backend import CORES
from cerebro.local.home import ClusterHome
from cerebro.runtime.forked import in_fork
from cerebro.runtime.parent_death import with_parent_death_signal
from cerebro.runtime.tracebacks import line_of
from cerebro.runtime.volumes import Volumes
from cerebro.spec import SubEpochSpec
from cerebro.state import ExperimentState, Model, Run, RunState
from cerebro.usercode.encoding import decode
from cerebro.usercode.fitted import read_fitted, restore_fitted
from cerebro.worker.agent.environment import archive_folder, python_for
from cerebro.worker.training import checkpoint as checkpoints
from cerebro.worker.training import comparing
from cerebro.worker.training.repeating import Repeat
from cerebro.worker.training.sub_epoch import default_device

_NAMED = 5
_ARCHIVE = "CEREBRO_ARCHIVE"
"""Variable that names the folder of the code archive whose environment this process has."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A model trained again.

    Attributes:
        sub-epochs: visits replayed.
        differences: names of tensors and values that are not equal to the saved ones, to the bit.
        remade: partitions that were made again for it, and are not known to be what was trained on.
        guessed: threads that sub-epochs were trained with here whose log does not tell how many they had; 0 if all
            tell.
        tolerance: relative difference of a tensor, by its norm, that counts as equal; 0: none does.
    """

    model: str
    sub_epochs: int
    differences: tuple[str, ...]
    remade: tuple[int, ...] = ()
    guessed: int = 0
    tolerance: float = 0.0
    is_random: bool = False
    """True if `train` draws random numbers, such as dropout masks."""
    failure: str = ""
    """Why the model could not be trained again."""

    @property
    def is_equal(self) -> bool:
        """Whether the final state is the saved one."""
        return not self.differences and not self.failure

    def __str__(self) -> str:
        if self.failure:
            return f"{self.model}: not replayed: {self.failure} (for the traceback, add --model {self.model})"
        outcome = f"{self.model}: {self.sub_epochs} sub-epochs replayed, final state "
        if self.is_equal:
            return outcome + (f"equal up to {self.tolerance:g}" if self.tolerance else "equal to the bit")
        outcome += f"DIFFERENT in {', '.join(self.differences[:_NAMED])}"
        if self.remade:
            partitions = ", ".join(map(str, self.remade))
            outcome += f" (partitions {partitions} were made again: their objects may have changed since)"
        if self.guessed:
            outcome += (
                f" (an older version's log does not tell with how many threads a sub-epoch was trained: here it was "
                f"{self.guessed}, another number rounds differently)"
            )
        if self.tolerance and self.is_random:
            outcome += (
                " (a tolerance covers rounding alone, and this train() draws random numbers, such as dropout masks: "
                "several devices, or another kind of device, draw other numbers than one device here. Replay without "
                "--tolerance on the same kind of devices, or compare metrics)"
            )
        return outcome


def main(
    experiment: str,
    *,
    run: str | None = None,
    model: str | None = None,
    home: str | None = None,
    scratch: str | None = None,
    tolerance: float = 0.0,
) -> int:
    """`cerebro replay`: prints a line per model; 0 if all are equal, else 1.

    With a code archive it does so in a process of its own, as workers do: with the archive's Python environment, in its
    folder, its files importable.
    """
    connection = connect(home=home)
    record = connection.kvs.experiment(experiment)
    fit, _ = chosen(Session(connection, record).state(), run, model)
    own = own_volumes(connection.volumes)
    archive = archive_folder(connection.kvs, own, record.archive)
    if archive and os.environ.get(_ARCHIVE) != archive:
        given = {
            "--model": model,
            "--scratch": scratch and str(Path(scratch).absolute()),
            "--tolerance": str(tolerance) if tolerance else None,
        }
        options = [word for name, value in given.items() if value for word in (name, value)]
        command = [python_for(archive, own), "-P", "-m", "cerebro.cli", "replay", experiment, "--run", fit.id]
        command += [*options, "--home", str(ClusterHome(home).path)]
        return subprocess.run(
            with_parent_death_signal(command), cwd=archive, env={**os.environ, _ARCHIVE: archive}, check=False
        ).returncode
    is_equal = True
    for found in replay(
        connection,
        experiment,
        run=fit.id,
        model=model,
        archive=archive,
        scratch=scratch,
        tolerance=tolerance,
        tell=_tell,
    ):
        is_equal = is_equal and found.is_equal
        _tell(str(found))
    return 0 if is_equal else 1


def chosen(state: ExperimentState, run: str | None, model: str | None) -> tuple[Run, list[Model]]:
    """What is to be replayed: a fit run and its models that have trained.

    Args:
        run: fit run; the newest that finished if left out, or the newest if none did.
        model: one model; all with a visit if left out.

    Raises:
        NotFoundError: no such run or model, or the run is no fit.
        ConflictError: nothing of it has been trained.
    """
    finished = [r.id for r in state.runs.values() if r.kind == "fit" and r.state is RunState.FINISHED]
    fit = chosen_fit(state, run or (finished[-1] if finished else None))
    models = list(fit.models.values()) if model is None else [find_model(fit, model)]
    trained = [known for known in models if known.own_sub_epochs]
    if not trained:
        raise ConflictError(
            f"nothing to replay: no sub-epoch of {model or 'any model'} is committed in {fit.id} of experiment "
            f"{state.name!r}, which is {fit.state}"
        )
    return fit, trained


def by_final_state(models: Sequence[Model]) -> tuple[list[Model], list[Model]]:
    """Split models into those whose final checkpoint is kept, and those whose checkpoint the search pruned."""
    return [m for m in models if not m.is_pruned], [m for m in models if m.is_pruned]


def replay(
    connection: Connection,
    experiment: str,
    *,
    run: str | None = None,
    model: str | None = None,
    archive: str = "",
    scratch: str | None = None,
    tolerance: float = 0.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Replayed]:
    """Train the models of a fit run again, one after another.

    Args:
        run, model: see `chosen`.
        archive: folder with the user's files, or empty; this process has the Python environment that they ask for.
        scratch: folder for partitions that are made again, which are gone when this ends; as of `own_volumes` if left
            out.
        tolerance: above 0, all sub-epochs are trained on one device, and states that differ by so little count as
            equal: a sub-epoch that ran on several devices rounds otherwise.
        tell: is told, in a line for people, what takes long.

    Raises:
        NotFoundError, ConflictError: there is nothing to replay.
        DataError: a partition is not on this machine and cannot be made again.
        Exception: user code raised it, and only one model is replayed. Of several, `Replayed.failure` says it.
    """
    record = connection.kvs.experiment(experiment)
    state = Session(connection, record).state()
    fit, models = chosen(state, run, model)
    if fit.archived_until:
        tell(f"reading the whole log of {experiment}, because older sub-epochs of {fit.id} are archived")
        state = Session(connection, record, is_whole=True).state()
        fit, models = chosen(state, run, model)
    models, pruned = by_final_state(models)
    if pruned:
        names = ", ".join(each.id for each in pruned)
        told = (
            f"the final checkpoint of {names} was pruned by the search, so there is no state to compare with"
        )
        if not models:
            raise ConflictError(f"nothing to replay in {fit.id} of experiment {experiment!r}: {told}")
        tell(f"not replayed: {told}")
    request = fit.request
    assert isinstance(request, FitRequest)
    plan = fit.plan
    assert isinstance(plan, FitPlan)
    own = own_volumes(connection.volumes)

    remaking = Remaking(
        connection=connection,
        record=record,
        state=state,
        dataset=plan.dataset,
        python=sys.executable,
        archive=archive,
        tell=tell,
    )
    place = Path(scratch) if scratch else own.shards
    with _partitions(connection.volumes, plan, place, remaking) as (folders, remade):
        if archive:
            sys.path.append(archive)
        encoded = connection.kvs.code(request.code).encoded
        # Where the log does not tell: as many threads as the workers have now.
        cores = min((w.record.cores for w in connection.kvs.workers()), default=1)
        # Some frameworks take no other number once they are there.
        os.environ.setdefault(CORES, str(models[0].visits[0].cores or cores))
        misc_dir = fetch_misc(record.locators.misc, own.misc)
        fitted = state.datasets[plan.dataset].fitted
        stored = None if fitted is None else connection.files.shared(fitted.name)

        def spec() -> SubEpochSpec:
            made: SubEpochSpec = decode(encoded)
            made.misc_dir = misc_dir
            if fitted is not None and stored is not None:
                made.fitted = restore_fitted(read_fitted(stored, fitted))
            made.initialize_worker()
            return made

        def replayed(trained: Model, saved_in: Path) -> Replayed:
            repeat = Repeat(
                technique=lambda sha256: connection.kvs.code(sha256).encoded,
                spec=spec(),
                code=encoded,
                request=request,
                folders=folders,
                rows=plan.partitions,
                models=fit.models,
                archive=archive,
                fitted=stored,
                cores=cores,
                is_single=tolerance > 0,
            )
            with tempfile.TemporaryDirectory(
                prefix="cerebro-replay-sub-epoch-", ignore_cleanup_errors=True
            ) as name:
                trainee = repeat.train(trained, Path(name))
            reference = trained.visits[-1].checkpoint
            saved = checkpoints.load(saved_in, reference, default_device())
            return Replayed(
                model=trained.id,
                sub_epochs=len(trained.visits),
                differences=tuple(
                    comparing.differences(
                        comparing.trained(trainee.state()), comparing.trained(saved), tolerance=tolerance
                    )
                ),
                tolerance=tolerance,
                is_random=repeat.is_random,
                remade=remade,
                guessed=0 if all(visit.cores for visit in trained.visits) else cores,
            )

        for trained in models:
            saved_in = connection.files.checkpoints(trained.visits[-1].checkpoint)
            try:
                yield in_fork(partial(replayed, trained, saved_in), f"the replay of {trained.id}")
            except Exception as error:
                if len(models) == 1:
                    raise
                yield Replayed(model=trained.id, sub_epochs=0, differences=(), failure=line_of(error))


def own_volumes(volumes: Volumes) -> Volumes:
    """Where this machine may put what a worker has on its own volume: there, on a worker or a local cluster; else in
    the user's cache folder, where it is kept for the next time."""
    if all(os.access(folder, os.W_OK) for folder in (volumes.shards, volumes.code)):
        return volumes
    root = cache_folder(os.environ) / "replay"
    return replace(volumes, shards=root / "shards", code=root / "code")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def _partitions(
    volumes: Volumes, plan: FitPlan, scratch: Path, remaking: Remaking
) -> Iterator[tuple[dict[int, Path], tuple[int, ...]]]:
    """Where the training partitions lie, below any worker's shard volume of this machine; and which were made
    again, and are not known to be the same."""
    roots = [volumes.shards / "datasets", *volumes.shards.glob("*/datasets")]
    found = {
        part.partition: part.folder
        for root in roots
        for part in find_partitions(root)
        if (part.dataset, part.split) == (plan.dataset, "train")
    }
    missing = sorted(set(plan.partitions) - set(found))
    if not missing:
        yield found, ()
        return
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cerebro-replay-", dir=scratch) as folder:
        made = {partition: remaking.make(partition, Path(folder)) for partition in missing}
        folders = {partition: one.folder for partition, one in made.items()}
        yield found | folders, tuple(partition for partition, one in made.items() if not one.is_same)

"""Replay: train models again and compare the final weights bit by bit.

`cerebro replay` calls `main`. It reads the log, code and checkpoints and changes nothing in the cluster.

This proves that hopping does not change training: the log of sub-epochs determines the weights (seed paper, section
3.1, "Reproducibility"). Each model trains in one process, on its partitions in the logged order, with the training code
of workers and without checkpoints in between. A sub-epoch with a parallel plan uses this plan and as many processes
again, or one device and a tolerance. Training partitions that are not on this machine are preprocessed again. User code
runs without the sandbox of workers, so replay only your own experiments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from cerebro.client.connection import Connection, connect
from cerebro.client.files import cache_folder
from cerebro.client.partition_rebuild import PartitionRebuilder
from cerebro.client.session import Session
from cerebro.commands.selection import chosen_fit, find_model
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.data.misc import fetch_misc
from cerebro.data.partitions import find_partitions
from cerebro.errors import ConflictError
from cerebro.keras.backend import CORES
from cerebro.local.home import ClusterHome
from cerebro.runtime.isolation.forked import in_fork
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.tracebacks import line_of
from cerebro.runtime.volumes import Volumes
from cerebro.spec import SubEpochSpec
from cerebro.state import ExperimentState, Model, Run, RunState
from cerebro.usercode.encoding import decode
from cerebro.usercode.fitted import read_fitted, restore_fitted
from cerebro.worker.agent.environment import archive_folder, python_for

Result = TypeVar("Result")

FUSED_TOLERANCE = 1e-3
"""Tolerance for models that trained in a fused group: a stack rounds otherwise than a model alone."""
_MAX_NAMED = 5
_ARCHIVE_VARIABLE = "CEREBRO_ARCHIVE"
"""Environment variable with the code archive's folder, set in a process with its Python environment."""


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Comparison of a replayed model with its saved state.

    Attributes:
        model: model id.
        sub_epochs: number of replayed sub-epochs.
        differences: names of tensors and values that differ.
        rebuilt: partitions that were preprocessed again and may differ from the original.
        assumed_threads: number of threads for sub-epochs whose log has none; 0 if all have one.
        tolerance: relative difference, by the norm of a tensor, that counts as equal. 0: compare bits.
        is_random: True if `train` uses random numbers, such as dropout masks.
        is_inexact: True if it used a GPU without torch's deterministic algorithms.
        failure: error of the replay; empty without one.
    """

    model: str
    sub_epochs: int
    differences: tuple[str, ...]
    rebuilt: tuple[int, ...] = ()
    assumed_threads: int = 0
    tolerance: float = 0.0
    is_random: bool = False
    is_inexact: bool = False
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """True if the final state equals the saved one."""
        return not self.differences and not self.failure

    def __str__(self) -> str:
        if self.failure:
            return f"{self.model}: not replayed: {self.failure} (for the traceback, add --model {self.model})"
        outcome = f"{self.model}: {self.sub_epochs} sub-epochs replayed, final state "
        if self.is_equal:
            return outcome + (f"equal up to {self.tolerance:g}" if self.tolerance else "equal to the bit")
        outcome += f"DIFFERENT in {', '.join(self.differences[:_MAX_NAMED])}"
        if self.rebuilt:
            partitions = ", ".join(map(str, self.rebuilt))
            outcome += f" (partitions {partitions} were preprocessed again: their objects may have changed)"
        if self.assumed_threads:
            outcome += (
                f" (the log of an older version lacks the number of threads: the replay used "
                f"{self.assumed_threads}, and another number rounds differently)"
            )
        if self.is_inexact and not self.tolerance:
            outcome += (
                " (on a GPU, some of torch's algorithms add in a different order each time. To compare bits, call "
                "torch.use_deterministic_algorithms(True) in initialize_worker() before the run)"
            )
        if self.tolerance and self.is_random:
            outcome += (
                " (a tolerance covers only rounding, and train() uses random numbers, such as dropout masks, which "
                "differ between numbers and kinds of devices. Replay without --tolerance on the same kind of devices, "
                "or compare metrics)"
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
    """Run `cerebro replay`, print a line per model, and return the exit status.

    With a code archive, it starts a process with the archive's Python environment and files, as workers do.
    """
    connection = connect(home=home)
    record = connection.kvs.experiment(experiment)
    fit, _ = choose_models(Session(connection, record).state(), run, model)
    volumes = writable_volumes(connection.volumes)
    archive = archive_folder(connection.kvs, volumes, record.archive)
    if archive and os.environ.get(_ARCHIVE_VARIABLE) != archive:
        arguments = {
            "--model": model,
            "--scratch": scratch and str(Path(scratch).absolute()),
            "--tolerance": str(tolerance) if tolerance else None,
        }
        options = [word for name, value in arguments.items() if value for word in (name, value)]
        command = [
            python_for(archive, volumes),
            "-P",
            "-m",
            "cerebro.cli",
            "replay",
            experiment,
            "--run",
            fit.id,
        ]
        command += [*options, "--home", str(ClusterHome(home).path)]
        with (
            exit_on_sigterm(),
            subprocess.Popen(
                with_parent_death_signal(command),
                cwd=archive,
                env={**os.environ, _ARCHIVE_VARIABLE: archive},
            ) as process,
        ):
            try:
                return process.wait()
            except SystemExit:
                process.terminate()  # it removes its folders
                raise
    results = replay(
        connection,
        experiment,
        run=fit.id,
        model=model,
        archive=archive,
        scratch=scratch,
        tolerance=tolerance,
        notify=_print,
    )
    is_equal = True
    with exit_on_sigterm(), closing(results):
        for result in results:
            is_equal = is_equal and result.is_equal
            _print(str(result))
    return 0 if is_equal else 1


def choose_models(state: ExperimentState, run: str | None, model: str | None) -> tuple[Run, list[Model]]:
    """Return the fit run to replay, and its trained models.

    Args:
        state: state of the experiment.
        run: fit run. Default: the newest finished one, or the newest.
        model: model id. Default: all trained models.

    Raises:
        NotFoundError: the run or model does not exist, or the run is not a fit.
        ConflictError: no sub-epoch is committed.
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
    """Split models by whether their final checkpoint still exists."""
    return [m for m in models if not m.is_pruned], [m for m in models if m.is_pruned]


def _with_final_state(models: Sequence[Model], where: str, notify: Callable[[str], None]) -> list[Model]:
    comparable, pruned = by_final_state(models)
    if pruned:
        names = ", ".join(each.id for each in pruned)
        reason = f"the search deleted the final checkpoint of {names}, so there is no state to compare"
        if not comparable:
            raise ConflictError(f"nothing to replay in {where}: {reason}")
        notify(f"not replayed: {reason}")
    return comparable


def replay(
    connection: Connection,
    experiment: str,
    *,
    run: str | None = None,
    model: str | None = None,
    archive: str = "",
    scratch: str | None = None,
    tolerance: float = 0.0,
    notify: Callable[[str], None] = lambda line: None,
) -> Generator[ReplayResult, None, None]:
    """Replay the models of a fit run, one after another.

    Args:
        connection: connection to the cluster.
        experiment: name of the experiment.
        run, model: as of `choose_models`.
        archive: folder with the files of the code archive, or empty. This process must have its Python environment.
        scratch: folder for rebuilt partitions, deleted afterwards. Default: as of `writable_volumes`.
        tolerance: above 0, train all sub-epochs on one device and accept this relative difference, because several
            devices round differently. Default 0, and `FUSED_TOLERANCE` for models that trained in a fused group.
        notify: receives a line at the start of each model, and messages about slow steps.

    Yields:
        The comparison of each model.

    Raises:
        NotFoundError, ConflictError: nothing was trained.
        DataError: a partition cannot be rebuilt.
        Exception: user code failed, and only one model is replayed. For several, see `ReplayResult.failure`.
    """
    # Here, so that a process that only starts another one does not import torch.
    from cerebro.worker.training.checkpoints import checkpoint as checkpoints
    from cerebro.worker.training.checkpoints import comparison
    from cerebro.worker.training.ranks.repetition import Repeat
    from cerebro.worker.training.sub_epoch import default_device, rounds_at_random

    record = connection.kvs.experiment(experiment)
    state = Session(connection, record).state()
    fit, models = choose_models(state, run, model)
    if fit.compaction.until:
        notify(f"reading the whole log of {experiment}, because older sub-epochs of {fit.id} are compacted")
        state = Session(connection, record, is_whole=True).state()
        fit, models = choose_models(state, run, model)
    models = _with_final_state(models, f"{fit.id} of experiment {experiment!r}", notify)
    request = fit.request
    assert isinstance(request, FitRequest)
    plan = fit.plan
    assert isinstance(plan, FitPlan)
    volumes = writable_volumes(connection.volumes)
    rebuilder = PartitionRebuilder(
        connection=connection,
        record=record,
        state=state,
        dataset=plan.dataset,
        python=sys.executable,
        archive=archive,
        notify=notify,
    )
    rebuild_folder = Path(scratch) if scratch else volumes.shards
    with _partitions(connection.volumes, plan, rebuild_folder, rebuilder) as (folders, rebuilt):
        if archive:
            sys.path.append(archive)
        encoded = connection.kvs.code(request.code).encoded
        # For logs without a number of threads: the current number of the workers.
        cores = min((w.record.cores for w in connection.kvs.workers()), default=1)
        # Some frameworks read this variable only once, at import.
        os.environ.setdefault(CORES, str(models[0].sub_epochs[0].cores or cores))
        misc_dir = fetch_misc(record.locators.misc, volumes.misc)
        fitted = state.datasets[plan.dataset].fitted
        stored = None if fitted is None else connection.files.shared(fitted.name)

        def create_spec() -> SubEpochSpec:
            spec: SubEpochSpec = decode(encoded)
            spec.misc_dir = misc_dir
            if fitted is not None and stored is not None:
                spec.fitted = restore_fitted(read_fitted(stored, fitted))
            spec.initialize_worker()
            return spec

        def replay_model(trained: Model, folder: Path, temporary: Path) -> ReplayResult:
            repeat = Repeat(
                technique=lambda sha256: connection.kvs.code(sha256).encoded,
                spec=create_spec(),
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
            is_fused = any(sub_epoch.is_fused for sub_epoch in trained.sub_epochs)
            accepted = tolerance or (FUSED_TOLERANCE if is_fused else 0.0)
            trainee = repeat.train(trained, temporary)
            reference = trained.sub_epochs[-1].checkpoint.ref()
            saved = checkpoints.load(folder, reference, default_device())
            return ReplayResult(
                model=trained.id,
                sub_epochs=len(trained.sub_epochs),
                differences=tuple(
                    comparison.differences(
                        comparison.trained(trainee.state()), comparison.trained(saved), tolerance=accepted
                    )
                ),
                tolerance=accepted,
                is_random=repeat.is_random,
                is_inexact=rounds_at_random(),
                rebuilt=rebuilt,
                assumed_threads=0 if all(sub_epoch.cores for sub_epoch in trained.sub_epochs) else cores,
            )

        for trained in models:
            folder = connection.files.checkpoints(trained.sub_epochs[-1].checkpoint.ref())
            notify(f"{trained.id}: replaying {len(trained.sub_epochs)} sub-epochs")
            try:
                yield fork_with_folder(partial(replay_model, trained, folder), f"the replay of {trained.id}")
            except Exception as error:
                if len(models) == 1:
                    raise
                yield ReplayResult(model=trained.id, sub_epochs=0, differences=(), failure=line_of(error))


def writable_volumes(volumes: Volumes) -> Volumes:
    """Return the mounted volumes if writable, otherwise folders in the user's cache."""
    if all(os.access(folder, os.W_OK) for folder in (volumes.shards, volumes.code)):
        return volumes
    root = cache_folder(os.environ) / "replay"
    return replace(volumes, shards=root / "shards", code=root / "code")


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` inside the block, so that this process removes its temporary folders."""
    former = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former or signal.SIG_DFL)


def fork_with_folder(work: Callable[[Path], Result], name: str) -> Result:
    """Call `in_fork` with a temporary folder. This process removes it, so it goes even if the fork is killed."""
    with tempfile.TemporaryDirectory(
        prefix="cerebro-replay-sub-epoch-", ignore_cleanup_errors=True
    ) as folder:
        return in_fork(lambda: work(Path(folder)), name)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def _partitions(
    volumes: Volumes, plan: FitPlan, scratch: Path, rebuilder: PartitionRebuilder
) -> Iterator[tuple[dict[int, Path], tuple[int, ...]]]:
    """Find or rebuild the training partitions; yield folders, and rebuilt partitions that may differ."""
    roots = [volumes.shards / "datasets", *volumes.shards.glob("*/datasets")]
    folders = {
        part.partition: part.folder
        for root in roots
        for part in find_partitions(root)
        if (part.dataset, part.split) == (plan.dataset, "train")
    }
    missing = sorted(set(plan.partitions) - set(folders))
    if not missing:
        yield folders, ()
        return
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cerebro-replay-", dir=scratch) as folder:
        rebuilt = {partition: rebuilder.rebuild(partition, Path(folder)) for partition in missing}
        folders |= {partition: result.folder for partition, result in rebuilt.items()}
        yield folders, tuple(partition for partition, result in rebuilt.items() if not result.is_same)

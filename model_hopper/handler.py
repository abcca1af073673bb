"""The handler of tasks on models. Runs in a worker's child process; holds between tasks only what may be lost."""

from __future__ import annotations

import ctypes
import gc
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

# The first optimizer of a process imports it, for seconds. Here it is imported before user code is, once, and counts as
# the start of a process and not as training.
import torch._dynamo

from cerebro.contract.tasks import (
    MAX_WARNINGS,
    AuditOutcome,
    AuditTask,
    CheckpointRef,
    EtlTask,
    EvaluateTask,
    FittingTask,
    InspectTask,
    ModelTask,
    Position,
    PredictTask,
    Savepoint,
    SearchTask,
    TaskBody,
    TaskResult,
    Timings,
    TrainTask,
    TrialTask,
)
from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.data.reading_ahead import ReadingAhead
from cerebro.errors import CerebroError, CheckpointCorruptError, NonFiniteMetricError, SpecError
from cerebro.runtime.usage import memory
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.runtime.volumes import checkpoint_file, savepoint_file
from cerebro.spec import SubEpochSpec
from cerebro.worker.agent.context import PROGRESS_S, BaseHandler, Context
from cerebro.worker.training import checkpoint as checkpoints
from cerebro.worker.training.checked import CheckedFile
from cerebro.worker.training.checkpoint import State
from cerebro.worker.training.curve_recorder import CurveRecorder
from cerebro.worker.training.frameworks import takes_threads
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import (
    Measured,
    numbers_of,
    ratios_of,
    require_mergeable,
)
from cerebro.worker.training.predictions import write_predictions
from cerebro.worker.training.savepoints import Savepoints, Write
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import (
    Trainee,
    create,
    default_device,
    evaluate,
    predicting,
    require_gpu,
    restore,
    train_sub_epoch,
)
from cerebro.worker.training.sub_epoch_share import SubEpochShare
from cerebro.worker.training.warm_up import warm_up, warm_up_before_fork
from model_hopper.auditing import bits_compared, metrics_compared
from model_hopper.reach import Reach, in_reach, reaches
from model_hopper.savepoint_timing import SavepointTiming

if TYPE_CHECKING:
    from cerebro.worker.training.reading_together import Unchecked
    from model_hopper.together import Placed

log = logging.getLogger(__name__)

_Ahead = Future[tuple[CheckedFile, Callable[[], State]]]

_SMALL_BYTES = 16 * 1024 * 1024
"""A state of at most so many bytes is read whole before its sub-epoch starts: beside the present model it always
fits."""

_EVALUATION_BATCH = 256
"""Rows per batch where the hyper-parameters name no batch size."""


class Handler(BaseHandler):
    """Does tasks on models, one at a time; keeps mapped partitions, and a checkpoint that was checked or read ahead."""

    before_fork = staticmethod(warm_up_before_fork)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._device = default_device()
        self._mapped: dict[tuple[Path, ...], MappedRows] = {}
        self._reading = ReadingAhead(context.cores, memory.own_group().usable_bytes())
        self._loader = ThreadPoolExecutor(1)
        self._ahead: tuple[CheckpointRef, _Ahead] | None = None
        self._savepoint_timing = SavepointTiming(context)
        with suppress(Exception):  # user code may have patched torch
            warm_up()

    def preload(self, body: TaskBody) -> None:
        """Read and check the checkpoint of the next task while the present one trains.

        A large state is only read when its sub-epoch starts: beside the present model it might not fit, and its
        sub-epoch may be taken back.
        """
        reference: CheckpointRef | None = getattr(body, "checkpoint", None)
        if isinstance(body, TrainTask) and body.savepoint is not None:
            reference = body.savepoint.checkpoint
        if isinstance(body, TrainTask) and body.gang is None:
            with suppress(CerebroError, OSError):  # the task itself will report it
                self._rows(body.dataset, "train", (body.partition,))
        if reference is not None and (self._ahead is None or self._ahead[0] != reference):
            self._ahead = reference, self._loader.submit(self._read_ahead, reference)

    def _read_ahead(self, reference: CheckpointRef) -> tuple[CheckedFile, Callable[[], State]]:
        checked = checkpoints.check(self._volumes.checkpoints, reference)
        if reference.size > _SMALL_BYTES:
            return checked, lambda: checkpoints.read(checked, self._device)
        state = checkpoints.read(checked, self._device)
        return checked, lambda: state

    def rest(self) -> None:
        """Let go of a checkpoint that was read ahead, of mapped partitions, and of the memory that
        torch on a GPU, and the C library, keep for the next model: other processes may want it."""
        self._ahead = None
        self._mapped.clear()
        gc.collect()
        torch.cuda.empty_cache()  # nothing where no GPU was asked for
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Do one task.

        Args:
            attempt: part of the checkpoint's name, so that two attempts never write one file.
        """
        if self._context.has_gpu:
            require_gpu(self._device)
        for gpu in _gpus():
            torch.cuda.reset_peak_memory_stats(gpu)
        try:
            try:
                result = self._do(body, attempt)
            finally:  # damaged rows come before errors of user code
                for rows in self._mapped.values():
                    rows.require_unchanged()
        except BaseException as error:
            if peak_gpu_bytes := _peak_gpu_bytes():
                error.peak_gpu_bytes = peak_gpu_bytes  # type: ignore[attr-defined]
            raise
        return result.model_copy(update={"peak_gpu_bytes": _peak_gpu_bytes()})

    def _do(self, body: TaskBody, attempt: int) -> TaskResult:
        if isinstance(body, EtlTask | FittingTask | InspectTask | TrialTask | SearchTask):
            raise SpecError(f"model_hopper does no task of kind {body.kind!r}")
        # The same number of threads on every worker: a sum that is split differently rounds differently.
        torch.set_num_threads(self._context.cores)
        self._make_folder(body)
        spec: SubEpochSpec = self._context.spec(body.code, body.misc, body.fitted)
        timings = Timings(start_s=self._context.work_begins())
        began = time.monotonic()
        placed = None
        if isinstance(body, TrainTask) and body.parallel_plan is not None:
            from model_hopper.together import placed_by

            placed = placed_by(self._context, body.parallel_plan, body.hang_timeout_s)
        if isinstance(body, AuditTask):
            return self._audit(spec, body, timings)
        if not isinstance(body, TrainTask):
            return self._evaluate_in_reach(spec, body, timings)
        self._context.device_memory.begin()
        trainee, resumed = self._trainee(spec, body, placed)
        self._context.device_memory.count_peak_anew()  # what reading takes is the host's
        timings = timings.model_copy(update={"load_s": time.monotonic() - began})
        return self._train(spec, body, attempt, trainee, resumed=resumed, timings=timings)

    def _make_folder(self, body: ModelTask) -> None:
        # Now, and not when the result is written: an attempt that was taken back may go on for a while, and must not
        # bring back what was deleted meanwhile. Later sub-epochs find the folder that the first one made; that one may
        # begin with another model's checkpoint.
        volumes = self._volumes
        if isinstance(body, PredictTask):
            folder = (volumes.shared / body.output).parent
        elif isinstance(body, TrainTask):
            folder = volumes.model_checkpoints(body.experiment, body.run, body.model)
            if body.checkpoint is not None and (volumes.checkpoints / body.checkpoint.name).parent == folder:
                return
        else:
            return
        with volume_errors_named(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def _train(
        self,
        spec: SubEpochSpec,
        body: TrainTask,
        attempt: int,
        trainee: Trainee,
        *,
        resumed: Mapping[str, Any] | None,
        timings: Timings,
    ) -> TaskResult:
        began = time.monotonic()
        size = body.hyperparams["batch_size"]
        assert isinstance(size, int)
        share = self._share(body, trainee)
        first = resumed["batch"] if resumed else 0
        # A sub-epoch goes on as it began, also on a worker with more cores or fewer.
        threads = resumed["threads"] if resumed else self._context.cores
        torch.set_num_threads(threads)
        loader = share.loader(
            self._rows(body.dataset, "train", (share.partition,)),
            hyperparams=body.hyperparams,
            seed=body.seed,
            model=body.model,
            epoch=body.epoch,
            device=trainee.device or self._device,
            first=first,
            reading=self._reading,
        )
        self._savepoint_timing.begin(began)
        savepoints = Savepoints(
            trainee,
            write=self._savepoint_writer(body, attempt, trainee),
            resumed=resumed,
            validation=body.validation,
        )
        recorder = CurveRecorder(began) if body.with_curve else None
        feed = self._feed(
            loader,
            epoch=body.epoch,
            sub_epoch=body.sub_epoch,
            position=body.position,
            savepoints=savepoints,
            recorder=recorder,
        )
        feed.rank, feed.ranks = trainee.share
        metrics = train_sub_epoch(
            spec,
            trainee,
            feed,
            body.hyperparams,
            seed=body.seed,
            model=body.model,
            epoch=body.epoch,
            partition=body.partition,
        )
        for warning in trainee.warnings:
            log.warning("%s", warning)
        where = f"epoch {body.epoch}, partition {body.partition}"
        require_mergeable(metrics, body.merges, body.needs, body.model, where)
        self._context.raise_if_ended()
        self._context.device_memory.check()
        trained = time.monotonic()
        values = feed.values()
        # Also without any, where others were told before: to save takes what time it takes, and is no batch.
        if values or trained - began > PROGRESS_S:
            total = loader.num_rows
            self._context.progress(rows=total, total_rows=total, batch=len(feed), values=values, final=True)
        curve = recorder.curve() if recorder is not None else None
        reference = trainee.save(self._volumes.checkpoints, self._name(body, attempt))
        took = {"compute_s": trained - began, "save_s": time.monotonic() - trained}
        timings = timings.model_copy(update=took)
        return TaskResult(
            rows=loader.num_rows,
            cores=threads,
            metrics=numbers_of(metrics),
            ratios=ratios_of(metrics),
            checkpoint=reference,
            resumed_rows=first * size,
            timings=timings,
            curve=curve,
            warnings=tuple(trainee.warnings[:MAX_WARNINGS]),
            validated=feed.validation.epoch + 1 if feed.validation else 0,
        )

    def _audit(self, spec: SubEpochSpec, body: AuditTask, timings: Timings) -> TaskResult:
        """Train a sub-epoch once more, and compare. Nothing is written."""
        loading = time.monotonic()
        self._context.device_memory.begin()
        trainee, _ = self._trainee(spec, body, None)
        self._context.device_memory.count_peak_anew()
        began = time.monotonic()
        is_exact = (
            body.is_exact and self._device.type == "cpu" and takes_threads(trainee.modules, body.threads)
        )
        torch.set_num_threads(body.threads)
        loader = SubEpochShare(partition=body.partition, share=trainee.share).loader(
            self._rows(body.dataset, "train", (body.partition,)),
            hyperparams=body.hyperparams,
            seed=body.seed,
            model=body.model,
            epoch=body.epoch,
            device=self._device,
        )
        feed = self._feed(
            loader,
            epoch=body.epoch,
            sub_epoch=body.sub_epoch,
            position=body.position,
            savepoints=Savepoints(trainee, validation=body.validation),
            is_audit=True,
        )
        timings = timings.model_copy(update={"load_s": began - loading})
        try:
            metrics = numbers_of(
                train_sub_epoch(
                    spec,
                    trainee,
                    feed,
                    body.hyperparams,
                    seed=body.seed,
                    model=body.model,
                    epoch=body.epoch,
                    partition=body.partition,
                )
            )
        except NonFiniteMetricError as error:
            # What was committed is finite.
            outcome, metrics = AuditOutcome(is_exact=False, differences=(str(error)[:200],)), {}
        else:
            self._context.raise_if_ended()
            self._context.device_memory.check()
            outcome = metrics_compared(metrics, body.metrics)
            if is_exact:
                made = checkpoints.check(self._volumes.checkpoints, body.made)
                outcome = bits_compared(trainee.state(), checkpoints.read(made, self._device))
        return TaskResult(
            rows=loader.num_rows,
            cores=body.threads,
            metrics=metrics,
            timings=timings.model_copy(update={"compute_s": time.monotonic() - began}),
            audit=outcome,
        )

    def _share(self, body: TrainTask, trainee: Trainee) -> SubEpochShare:
        """What this process reads of the sub-epoch."""
        if body.gang is None or self._context.ranks is None:
            return SubEpochShare(partition=body.partition, share=trainee.share)
        return SubEpochShare.of_member(body.gang, self._context.ranks.rank)

    def _evaluate_in_reach(
        self, spec: SubEpochSpec, body: EvaluateTask | PredictTask, timings: Timings
    ) -> TaskResult:
        """Evaluate on the device; where memory runs out in smaller batches, and at last on the host."""
        given = body.hyperparams.get("batch_size")
        most = self._rows(body.dataset, body.split, body.partitions).num_rows
        size = max(1, min(given if isinstance(given, int) else _EVALUATION_BATCH, most))
        tried = reaches(self._device, size, is_limited=self._context.device_memory.is_limited)
        return in_reach(tried, lambda reach: self._evaluate(spec, body, timings, reach))

    def _evaluate(
        self, spec: SubEpochSpec, body: EvaluateTask | PredictTask, timings: Timings, reach: Reach
    ) -> TaskResult:
        loading = time.monotonic()
        self._context.device_memory.begin(is_on_host=reach.is_on_host)
        trainee, _ = self._trainee(spec, body, None, reach.device)
        self._context.device_memory.count_peak_anew()  # what reading takes is the host's
        began = time.monotonic()
        timings = timings.model_copy(update={"load_s": began - loading})
        rows = self._rows(body.dataset, body.split, body.partitions)
        loader = PartitionLoader(rows, batch_size=reach.batch_size, seed=None, device=reach.device)
        feed = self._feed(loader, epoch=body.epoch)
        seed = sub_epoch_seed(body.seed, body.model, body.epoch, -1)
        metrics: Measured = {}
        is_part = isinstance(body, EvaluateTask) and body.split == "train"
        if isinstance(body, EvaluateTask):
            metrics = evaluate(spec, trainee, feed, body.hyperparams, seed=seed)
            self._context.raise_if_ended()
        else:
            with predicting(spec, trainee, feed, body.hyperparams, seed=seed) as returned:
                write_predictions(self._volumes.shared / body.output, loader.stored_ids(), returned)
        self._context.device_memory.check()
        return TaskResult(
            rows=feed.num_rows,
            metrics=numbers_of(metrics),
            ratios=ratios_of(metrics) if is_part else {},
            output=body.output if isinstance(body, PredictTask) else "",
            timings=timings.model_copy(update={"compute_s": time.monotonic() - began}),
        )

    def _savepoint_writer(self, body: TrainTask, attempt: int, trainee: Trainee) -> Write:
        def write(state: State, batch: int, rows: int) -> None:
            name = savepoint_file(checkpoint=self._name(body, attempt), batch=batch)
            reference = trainee.save(self._volumes.checkpoints, name, state)
            if reference is not None:
                self._context.saved(Savepoint(checkpoint=reference, batch=batch, rows=rows))

        return write

    def _name(self, body: TrainTask, attempt: int) -> str:
        folder = self._volumes.model_checkpoints(body.experiment, body.run, body.model)
        name = checkpoint_file(
            sub_epoch=body.sub_epoch,
            epoch=body.epoch,
            partition=body.partition,
            others=body.others,
            attempt=attempt,
        )
        return f"{folder.relative_to(self._volumes.checkpoints)}/{name}"

    def _trainee(
        self,
        spec: SubEpochSpec,
        body: ModelTask,
        placed: Placed | None,
        own_device: torch.device | None = None,
    ) -> tuple[Trainee, Mapping[str, Any] | None]:
        """The model as the task needs it, and where in the sub-epoch it goes on, if not at its beginning.

        Args:
            own_device: for a task without a way, if not the handler's.
        """
        ahead, self._ahead = self._ahead, None
        alone_on = own_device or self._device
        device = alone_on if placed is None else placed.device

        def made(reference: CheckpointRef | None, *, is_optional: bool = False) -> tuple[Trainee, State]:
            trainee = create(spec, body.hyperparams, seed=body.seed, model=body.model, device=device)
            if reference is None:
                return trainee, {}
            is_ahead = ahead is not None and ahead[0] == reference and alone_on == self._device
            waiting = ahead[1] if ahead is not None and is_ahead else None
            if placed is not None:
                state = placed.load(partial(self._found, reference, waiting), is_optional=is_optional)
            elif waiting is not None:
                state = waiting.result()[1]()
            else:
                state = checkpoints.read(checkpoints.check(self._volumes.checkpoints, reference), alone_on)
            restore(trainee, state)
            return trainee, state

        def begun() -> tuple[Trainee, Mapping[str, Any] | None]:
            if isinstance(body, TrainTask) and body.savepoint is not None:
                try:
                    trainee, state = made(body.savepoint.checkpoint, is_optional=True)
                    resumed: Mapping[str, Any] = state["savepoint"]
                    there, here = (
                        len(resumed.get("ranks", (None,))),
                        1 if placed is None else placed.group.size,
                    )
                    if there != here:
                        log.warning(
                            "the sub-epoch is done from its beginning: %d ranks saved it, not %d", there, here
                        )
                    elif not takes_threads(trainee.modules, resumed["threads"]):
                        threads = resumed["threads"]
                        log.warning(
                            "the sub-epoch is done from its beginning: it had %d threads before", threads
                        )
                    else:
                        return trainee, resumed
                except CheckpointCorruptError as error:
                    log.warning("the sub-epoch is done from its beginning: %s", error)
            return made(getattr(body, "checkpoint", None))[0], None

        trainee, resumed = begun()
        trainee.frozen.is_wanted = isinstance(body, TrainTask)
        return trainee if placed is None else placed.ready(spec, trainee), resumed

    def _found(self, reference: CheckpointRef, waiting: _Ahead | None) -> CheckedFile | Unchecked:
        from cerebro.worker.training.reading_together import Unchecked

        if waiting is not None:
            return waiting.result()[0]
        return Unchecked(self._volumes.checkpoint(reference.name), reference)

    def _rows(self, dataset: str, split: str, partitions: tuple[int, ...]) -> MappedRows:
        folders = tuple(self._volumes.partition(dataset, split, partition) for partition in partitions)
        if folders not in self._mapped:
            self._mapped[folders] = MappedRows.open(folders)
        return self._mapped[folders]

    def _feed(
        self,
        loader: PartitionLoader,
        *,
        epoch: int,
        sub_epoch: int = 0,
        position: Position | None = None,
        savepoints: Savepoints | None = None,
        recorder: CurveRecorder | None = None,
        is_audit: bool = False,
    ) -> InstrumentedLoader:
        def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
            self._context.listen()
            # What is reported in an audit was reported before.
            told = {} if is_audit else values
            self._context.progress(rows=rows, total_rows=loader.num_rows, batch=batch, values=told)
            if rows < loader.num_rows:
                if savepoints is not None and not is_audit and batch > loader.first:
                    self._savepoint_timing.consider(savepoints, batch, rows, loader)
                self._context.raise_if_ending()

        return InstrumentedLoader(
            loader,
            on_batch,
            self._context.is_progress_due,
            epoch=epoch,
            sub_epoch=sub_epoch,
            position=position,
            savepoints=savepoints,
            recorder=recorder,
        )


def _peak_gpu_bytes() -> int:
    return sum(torch.cuda.max_memory_reserved(gpu) for gpu in _gpus())


def _gpus() -> range:
    """Of the task: torch sees no others. None before torch was asked for one."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if is_used else 0)

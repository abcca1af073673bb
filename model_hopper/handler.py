"""The handler of `train`, `valid`, `test`, `predict` and `verify` tasks. Between tasks it keeps only caches.

The child's task loop creates `Handler` and calls `handle`, on each rank of a parallel plan. A `train` task reads a
parent checkpoint or savepoint and a partition, and writes savepoints and the next checkpoint; `predict` writes
predictions, and `test` metrics per row; the others write nothing. The agent commits the result and removes old
checkpoints; the controller schedules. `cerebro.worker.training` has the training code.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

# The first optimizer of a process imports this module, which takes seconds. Importing it here, before user code, counts
# that time as process start and not as training.
import torch._dynamo

from cerebro.contract.tasks.bodies import (
    EtlTask,
    EvaluateTask,
    FittingTask,
    FusedTask,
    InspectTask,
    ModelTask,
    Position,
    PredictTask,
    SearchTask,
    TaskBody,
    TrainTask,
    TrialTask,
    VerificationTask,
)
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.results import MAX_WARNINGS, TaskResult, Timings, VerificationOutcome
from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.data.prefetch_tuning import ReadingAhead
from cerebro.errors import (
    CerebroError,
    CheckpointCorruptError,
    NonFiniteMetricError,
    SpecError,
)
from cerebro.runtime.usage import memory
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.runtime.volumes import checkpoint_file, per_row_file, savepoint_file
from cerebro.spec import SubEpochSpec
from cerebro.worker.child.context import PROGRESS_S, BaseHandler, Context
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.savepoints import Savepoints, Write
from cerebro.worker.training.checkpoints.verified_file import CheckedFile
from cerebro.worker.training.curve_recorder import CurveRecorder
from cerebro.worker.training.frameworks import takes_threads
from cerebro.worker.training.frozen_layers.layers import FrozenLayers
from cerebro.worker.training.frozen_layers.output_cache import OutputCache
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import (
    Measured,
    PerRowValues,
    numbers_of,
    ratios_of,
    require_mergeable,
    total_per_row,
)
from cerebro.worker.training.predictions import write_per_row, write_predictions
from cerebro.worker.training.ranks.sub_epoch_share import SubEpochShare
from cerebro.worker.training.seeds import order_seed, sub_epoch_seed
from cerebro.worker.training.sub_epoch import (
    create,
    default_device,
    evaluate,
    predicting,
    require_gpu,
    restore,
    train_sub_epoch,
)
from cerebro.worker.training.trainee import Trainee
from cerebro.worker.training.warm_up import warm_up, warm_up_before_fork
from model_hopper.group_training import GroupAccess, GroupTraining, require_stackable
from model_hopper.memory_fallback import EvaluationSetting, evaluate_with_fallback, fallback_settings
from model_hopper.savepoint_timing import SavepointTiming
from model_hopper.verification import compare_metrics, compare_states

if TYPE_CHECKING:
    from cerebro.worker.training.checkpoints.joint_read import Unchecked
    from model_hopper.rank_setup import RankSetup

log = logging.getLogger(__name__)

_Preloaded = Future[tuple[CheckedFile, Callable[[], State]]]

_SMALL_BYTES = 16 * 1024 * 1024
"""Largest state that is loaded before its sub-epoch starts; it fits together with the current model."""

_EVALUATION_BATCH = 256
"""Rows per batch if the hyperparameters have no `batch_size`."""


class Handler(BaseHandler):
    """Executes tasks on models, one at a time.

    Keeps mapped partitions and at most one preloaded checkpoint between tasks.
    """

    before_fork = staticmethod(warm_up_before_fork)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._device = default_device()
        self._mapped: dict[tuple[Path, ...], MappedRows] = {}
        self._reading = ReadingAhead(context.cores, memory.own_group().usable_bytes())
        self._loader = ThreadPoolExecutor(1)
        self._preloaded: tuple[CheckpointRef, _Preloaded] | None = None
        self._savepoint_timing = SavepointTiming(context)
        with suppress(Exception):  # user code may have patched torch
            warm_up()

    def preload(self, body: TaskBody) -> None:
        """Read and verify the next task's checkpoint while the current task trains.

        The tensors of a large state are loaded only when its sub-epoch starts, because both models might not fit into
        memory and the controller may revoke the sub-epoch.
        """
        reference: CheckpointRef | None = getattr(body, "checkpoint", None)
        if isinstance(body, TrainTask) and body.savepoint is not None:
            reference = body.savepoint.checkpoint
        if isinstance(body, TrainTask) and body.gang is None:
            with suppress(CerebroError, OSError):  # the task itself will report the error
                self._rows(body.dataset, "train", (body.partition,))
        if reference is not None and (self._preloaded is None or self._preloaded[0] != reference):
            self._preloaded = reference, self._loader.submit(self._read_checkpoint, reference)

    def _read_checkpoint(self, reference: CheckpointRef) -> tuple[CheckedFile, Callable[[], State]]:
        checked = checkpoints.check(self._volumes.checkpoints, reference)
        if reference.size > _SMALL_BYTES:
            return checked, lambda: checkpoints.read(checked, self._device)
        state = checkpoints.read(checked, self._device)
        return checked, lambda: state

    def free_memory(self) -> None:
        """Release the preloaded checkpoint, mapped partitions and memory cached by torch and the C library.

        Other processes may need that memory.
        """
        self._preloaded = None
        self._mapped.clear()
        gc.collect()
        torch.cuda.empty_cache()  # no effect without a GPU
        memory.trim_heap()

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Execute one task.

        Args:
            body: the task.
            attempt: number of the attempt. It is part of the checkpoint's name, so two attempts never write the same
                file.
        """
        with self._checked_devices():
            result = self._execute(body, attempt)
        return result.model_copy(update={"peak_gpu_bytes": _peak_gpu_bytes()})

    @contextmanager
    def _checked_devices(self) -> Iterator[None]:
        if self._context.has_gpu:
            require_gpu(self._device)
        for gpu in _gpus():
            torch.cuda.reset_peak_memory_stats(gpu)
        try:
            try:
                yield
            finally:  # damaged rows come before errors of user code
                for rows in self._mapped.values():
                    rows.require_unchanged()
        except BaseException as error:
            if peak_gpu_bytes := _peak_gpu_bytes():
                error.peak_gpu_bytes = peak_gpu_bytes  # type: ignore[attr-defined]
            raise

    def handle_group(self, task: FusedTask) -> None:
        """Train the members of a fused group as a stack; see `BaseHandler`."""
        torch.set_num_threads(self._context.cores)
        first = task.first
        for member in task.members:
            self._make_folder(member.body)
        with self._checked_devices():
            spec = self._context.user_code.spec(first.code, first.misc, first.fitted)
            timings = Timings(start_s=self._context.start_up.finish())
            access = GroupAccess(
                device=self._device,
                restore=lambda body: self._trainee(spec, body, None),
                loader=lambda body, batch: self._train_loader(
                    body, SubEpochShare(partition=body.partition, share=(0, 1)), self._device, batch
                ),
                frozen_layers=self._frozen_layers,
                save=lambda body, attempt, trainee: trainee.save(
                    self._volumes.checkpoints, self._name(body, attempt)
                ),
                savepoint_writer=self._savepoint_writer,
            )
            GroupTraining(
                require_stackable(spec),
                task.members,
                self._context,
                access,
                self._savepoint_timing,
                timings=timings,
            ).train()

    def _execute(self, body: TaskBody, attempt: int) -> TaskResult:
        if isinstance(body, EtlTask | FittingTask | FusedTask | InspectTask | TrialTask | SearchTask):
            raise SpecError(f"model_hopper does not execute tasks of kind {body.kind!r}")
        # Use the same number of threads on every worker, because another division of a sum rounds differently.
        torch.set_num_threads(self._context.cores)
        self._make_folder(body)
        spec: SubEpochSpec = self._context.user_code.spec(body.code, body.misc, body.fitted)
        timings = Timings(start_s=self._context.start_up.finish())
        began = time.monotonic()
        rank_setup = None
        if isinstance(body, TrainTask) and body.parallel_plan is not None:
            from model_hopper.rank_setup import join_plan

            rank_setup = join_plan(self._context, body.parallel_plan, body.hang_timeout_s)
        if isinstance(body, VerificationTask):
            return self._verification(spec, body, timings)
        if not isinstance(body, TrainTask):
            return self._evaluate_with_fallback(spec, body, attempt, timings)
        self._context.device_memory.begin()
        trainee, resumed = self._trainee(spec, body, rank_setup)
        self._context.device_memory.count_peak_anew()  # loading uses host memory only
        timings = timings.model_copy(update={"load_s": time.monotonic() - began})
        return self._train(spec, body, attempt, trainee, resumed=resumed, timings=timings)

    def _make_folder(self, body: ModelTask) -> None:
        # Make the folder now and not when the result is written: a revoked attempt may continue for a while and must
        # not restore deleted folders. Later sub-epochs find the folder of the first one. The first sub-epoch may start
        # from another model's checkpoint.
        volumes = self._volumes
        if isinstance(body, PredictTask):
            folder = (volumes.shared / body.output).parent
        elif isinstance(body, EvaluateTask) and body.kind == "test":
            folder = (volumes.shared / _per_row_file(body, 1)).parent
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
        # A resumed sub-epoch keeps its number of threads, also on a worker with more or fewer cores.
        threads = resumed["threads"] if resumed else self._context.cores
        torch.set_num_threads(threads)
        loader = self._train_loader(body, share, trainee.device or self._device, first)
        self._savepoint_timing.begin(began)
        savepoints = Savepoints(
            trainee,
            write=self._savepoint_writer(body, attempt, trainee),
            resumed=resumed,
            validation=body.validation,
        )
        recorder = CurveRecorder(began) if body.with_curve else None
        feed = self._feed(
            body,
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
        # Report even without values if earlier batches reported some: saving takes time and is no batch.
        if values or trained - began > PROGRESS_S:
            total = loader.num_rows
            self._context.progress(
                rows=total,
                total_rows=total,
                batch=len(feed),
                values=values,
                final=True,
            )
        curve = recorder.curve() if recorder is not None else None
        reference = trainee.save(self._volumes.checkpoints, self._name(body, attempt))
        durations = {"compute_s": trained - began, "save_s": time.monotonic() - trained}
        timings = timings.model_copy(update=durations)
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

    def _train_loader(
        self, body: TrainTask, share: SubEpochShare, device: str | torch.device, first: int
    ) -> PartitionLoader:
        return share.loader(
            self._rows(body.dataset, "train", (share.partition,)),
            hyperparams=body.hyperparams,
            seed=_order_seed(body, share.partition),
            model=body.model,
            device=device,
            first=first,
            reading=self._reading,
        )

    def _verification(self, spec: SubEpochSpec, body: VerificationTask, timings: Timings) -> TaskResult:
        """Re-execute a sub-epoch and compare it with the committed one, without writing anything."""
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
            seed=_order_seed(body, body.partition),
            model=body.model,
            device=self._device,
        )
        feed = self._feed(
            body,
            loader,
            epoch=body.epoch,
            sub_epoch=body.sub_epoch,
            position=body.position,
            savepoints=Savepoints(trainee, validation=body.validation),
            is_verification=True,
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
            # Committed metrics are finite, so this one differs.
            outcome, metrics = VerificationOutcome(is_exact=False, differences=(str(error)[:200],)), {}
        else:
            self._context.raise_if_ended()
            self._context.device_memory.check()
            outcome = compare_metrics(metrics, body.metrics)
            if is_exact:
                committed = checkpoints.check(self._volumes.checkpoints, body.expected)
                outcome = compare_states(trainee.state(), checkpoints.read(committed, self._device))
        return TaskResult(
            rows=loader.num_rows,
            cores=body.threads,
            metrics=metrics,
            timings=timings.model_copy(update={"compute_s": time.monotonic() - began}),
            verification=outcome,
        )

    def _share(self, body: TrainTask, trainee: Trainee) -> SubEpochShare:
        if body.gang is None or self._context.ranks is None:
            return SubEpochShare(partition=body.partition, share=trainee.share)
        return SubEpochShare.of_member(body.gang, self._context.ranks.rank)

    def _evaluate_with_fallback(
        self, spec: SubEpochSpec, body: EvaluateTask | PredictTask, attempt: int, timings: Timings
    ) -> TaskResult:
        """Evaluate on the device; after a lack of memory, in smaller batches and then on the host."""
        batch_size = body.hyperparams.get("batch_size")
        num_rows = self._rows(body.dataset, body.split, body.partitions).num_rows
        size = max(1, min(batch_size if isinstance(batch_size, int) else _EVALUATION_BATCH, num_rows))
        settings = fallback_settings(self._device, size, is_limited=self._context.device_memory.is_limited)
        return evaluate_with_fallback(
            settings, lambda setting: self._evaluate(spec, body, attempt, timings, setting)
        )

    def _evaluate(
        self,
        spec: SubEpochSpec,
        body: EvaluateTask | PredictTask,
        attempt: int,
        timings: Timings,
        setting: EvaluationSetting,
    ) -> TaskResult:
        loading = time.monotonic()
        self._context.device_memory.begin(is_on_host=setting.is_on_host)
        trainee, _ = self._trainee(spec, body, None, setting.device)
        self._context.device_memory.count_peak_anew()  # loading uses host memory only
        began = time.monotonic()
        timings = timings.model_copy(update={"load_s": began - loading})
        rows = self._rows(body.dataset, body.split, body.partitions)
        loader = PartitionLoader(rows, batch_size=setting.batch_size, seed=None, device=setting.device)
        feed = self._feed(body, loader, epoch=body.epoch)
        seed = sub_epoch_seed(body.seed, body.model, body.epoch, -1)
        metrics: Measured = {}
        per_row: PerRowValues = {}
        is_part = isinstance(body, EvaluateTask) and body.split == "train"
        output = ""
        if isinstance(body, EvaluateTask):
            metrics = evaluate(spec, trainee, feed, body.hyperparams, seed=seed, per_row=per_row)
            self._context.raise_if_ended()
            if per_row and body.kind == "test":
                output = _per_row_file(body, attempt)
                write_per_row(self._volumes.shared / output, loader.stored_ids(), per_row)
                for earlier in range(1, attempt):  # can't be committed any more
                    (self._volumes.shared / _per_row_file(body, earlier)).unlink(missing_ok=True)
        else:
            output = body.output
            with predicting(spec, trainee, feed, body.hyperparams, seed=seed) as returned:
                write_predictions(self._volumes.shared / body.output, loader.stored_ids(), returned)
        self._context.device_memory.check()
        return TaskResult(
            rows=feed.num_rows,
            metrics=numbers_of(metrics),
            ratios=ratios_of(metrics | {name: total_per_row(each) for name, each in per_row.items()})
            if is_part
            else {},
            output=output,
            timings=timings.model_copy(update={"compute_s": time.monotonic() - began}),
        )

    def _savepoint_writer(self, body: TrainTask, attempt: int, trainee: Trainee, member: int = 0) -> Write:
        def write(state: State, batch: int, rows: int) -> None:
            name = savepoint_file(checkpoint=self._name(body, attempt), batch=batch)
            reference = trainee.save(self._volumes.checkpoints, name, state)
            if reference is not None:
                self._context.saved(Savepoint(checkpoint=reference, batch=batch, rows=rows), member)

        return write

    def _name(self, body: TrainTask, attempt: int) -> str:
        folder = self._volumes.model_checkpoints(body.experiment, body.run, body.model)
        name = checkpoint_file(
            sub_epoch=body.sub_epoch,
            epoch=body.epoch,
            partition=body.partition,
            other_partitions=body.other_partitions,
            attempt=attempt,
        )
        return f"{folder.relative_to(self._volumes.checkpoints)}/{name}"

    def _trainee(
        self,
        spec: SubEpochSpec,
        body: ModelTask,
        rank_setup: RankSetup | None,
        own_device: torch.device | None = None,
    ) -> tuple[Trainee, Mapping[str, Any] | None]:
        """Create and restore the task's model.

        Args:
            rank_setup: the rank group's setup; `None` without a parallel plan.
            own_device: device to use without a parallel plan; default: the handler's device.

        Returns:
            The model, and the savepoint's state if the sub-epoch resumes from one.
        """
        preloaded, self._preloaded = self._preloaded, None
        single_device = own_device or self._device
        device = single_device if rank_setup is None else rank_setup.device

        def build(reference: CheckpointRef | None, *, is_optional: bool = False) -> tuple[Trainee, State]:
            trainee = create(spec, body.hyperparams, seed=body.seed, model=body.model, device=device)
            if reference is None:
                return trainee, {}
            is_preloaded = (
                preloaded is not None and preloaded[0] == reference and single_device == self._device
            )
            preloading = preloaded[1] if preloaded is not None and is_preloaded else None
            if rank_setup is not None:
                state = rank_setup.load(
                    partial(self._find_checkpoint, reference, preloading), is_optional=is_optional
                )
            elif preloading is not None:
                state = preloading.result()[1]()
            else:
                state = checkpoints.read(
                    checkpoints.check(self._volumes.checkpoints, reference), single_device
                )
            restore(trainee, state)
            return trainee, state

        def build_or_resume() -> tuple[Trainee, Mapping[str, Any] | None]:
            if isinstance(body, TrainTask) and body.savepoint is not None:
                try:
                    trainee, state = build(body.savepoint.checkpoint, is_optional=True)
                    resumed: Mapping[str, Any] = state["savepoint"]
                    saved_ranks = len(resumed.get("ranks", (None,)))
                    ranks = 1 if rank_setup is None else rank_setup.group.size
                    if saved_ranks != ranks:
                        log.warning(
                            "the sub-epoch restarts from its first batch: its savepoint has %d ranks, not %d",
                            saved_ranks,
                            ranks,
                        )
                    elif not takes_threads(trainee.modules, resumed["threads"]):
                        threads = resumed["threads"]
                        log.warning(
                            "the sub-epoch restarts from its first batch: its savepoint has %d threads",
                            threads,
                        )
                    else:
                        return trainee, resumed
                except CheckpointCorruptError as error:
                    log.warning("the sub-epoch restarts from its first batch: %s", error)
            return build(getattr(body, "checkpoint", None))[0], None

        trainee, resumed = build_or_resume()
        trainee.frozen.is_wanted = isinstance(body, TrainTask)
        return trainee if rank_setup is None else rank_setup.prepare_model(spec, trainee), resumed

    def _find_checkpoint(
        self, reference: CheckpointRef, preloading: _Preloaded | None
    ) -> CheckedFile | Unchecked:
        from cerebro.worker.training.checkpoints.joint_read import Unchecked

        if preloading is not None:
            return preloading.result()[0]
        return Unchecked(self._volumes.checkpoint(reference.name), reference)

    def _rows(self, dataset: str, split: str, partitions: tuple[int, ...]) -> MappedRows:
        folders = tuple(self._volumes.partition(dataset, split, partition) for partition in partitions)
        if folders not in self._mapped:
            self._mapped[folders] = MappedRows.open(folders)
        return self._mapped[folders]

    def _feed(
        self,
        body: ModelTask,
        loader: PartitionLoader,
        *,
        epoch: int,
        sub_epoch: int = 0,
        position: Position | None = None,
        savepoints: Savepoints | None = None,
        recorder: CurveRecorder | None = None,
        is_verification: bool = False,
    ) -> InstrumentedLoader:
        def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
            self._context.listen()
            # The committed attempt already reported these values.
            new_values = {} if is_verification else values
            self._context.progress(rows=rows, total_rows=loader.num_rows, batch=batch, values=new_values)
            if rows < loader.num_rows:
                if savepoints is not None and not is_verification and batch > loader.first:
                    self._savepoint_timing.consider(savepoints, batch, rows, loader)
                self._context.raise_if_ending()

        feed = InstrumentedLoader(
            loader,
            on_batch,
            self._context.is_progress_due,
            epoch=epoch,
            sub_epoch=sub_epoch,
            position=position,
            savepoints=savepoints,
            recorder=recorder,
        )
        feed.frozen_layers = self._frozen_layers(body, loader)
        return feed

    def _frozen_layers(self, body: ModelTask, loader: PartitionLoader) -> FrozenLayers:
        cache = OutputCache(self._volumes.frozen_outputs, body.dataset, self._context.frozen_cache_bytes)
        return FrozenLayers(loader, cache, self._context.pause)


def _order_seed(body: TrainTask | VerificationTask, partition: int) -> int:
    return order_seed(body.seed, body.model, body.epoch, partition, is_shared=body.has_shared_order)


def _peak_gpu_bytes() -> int:
    return sum(torch.cuda.max_memory_reserved(gpu) for gpu in _gpus())


def _gpus() -> range:
    """The task's GPUs; empty until user code uses CUDA."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if is_used else 0)


def _per_row_file(body: EvaluateTask, attempt: int) -> str:
    return per_row_file(
        experiment=body.experiment,
        run=body.run,
        model=body.model,
        partition=next(iter(body.partitions), 0),
        attempt=attempt,
    )

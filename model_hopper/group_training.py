"""A fused group in a worker's process: restores its members, trains them as a stack, and saves each one.

`model_hopper.handler` creates a `GroupTraining` for a `FusedTask`. All members take savepoints at the same batches. A
member that the agent asks to leave takes one, too, if time permits, and the others continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cerebro.contract.tasks.bodies import FusedMember, TrainTask
from cerebro.contract.tasks.results import MAX_WARNINGS, TaskResult, Timings
from cerebro.data.loader import PartitionLoader
from cerebro.errors import NotApplicableError, PreemptedError
from cerebro.spec import SubEpochSpec
from cerebro.steps.spec import StepSpec
from cerebro.worker.child.context import Context
from cerebro.worker.training.checkpoints.savepoints import Write
from cerebro.worker.training.curve_recorder import CurveRecorder
from cerebro.worker.training.frozen_layers.layers import FrozenLayers
from cerebro.worker.training.fused.group import train_group
from cerebro.worker.training.fused.member import Member, MemberSavepoints, SharedBatches
from cerebro.worker.training.fused.refusals import outcome_of
from cerebro.worker.training.fused.structure import not_stackable
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import Measured, numbers_of, ratios_of, require_mergeable
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.trainee import Trainee
from model_hopper.savepoint_timing import SavepointTiming

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GroupAccess:
    """Functions of the handler that a group calls, and its device.

    Attributes:
        device: device of the stack.
        restore: creates and restores a model; also returns the savepoint's state if the sub-epoch resumes.
        loader: returns the partition's batches from a first batch.
        frozen_layers: returns the outputs of frozen layers for these batches.
        save: writes a model's checkpoint for an attempt, and returns its reference.
        savepoint_writer: returns the function that writes a member's savepoints, by the member's number.
    """

    device: torch.device
    restore: Callable[[TrainTask], tuple[Trainee, Mapping[str, Any] | None]]
    loader: Callable[[TrainTask, int], PartitionLoader]
    frozen_layers: Callable[[TrainTask, PartitionLoader], FrozenLayers]
    save: Callable[[TrainTask, int, Trainee], Any]
    savepoint_writer: Callable[[TrainTask, int, Trainee, int], Write]


@dataclass(eq=False, kw_only=True)
class _Restored:
    """A member of the group, restored."""

    number: int
    assigned: FusedMember
    trainee: Trainee
    resumed: Mapping[str, Any] | None
    savepoints: MemberSavepoints = field(init=False)
    recorder: CurveRecorder | None = None

    @property
    def body(self) -> TrainTask:
        return self.assigned.body

    @property
    def first(self) -> int:
        return int(self.resumed["batch"]) if self.resumed else 0


def require_stackable(spec: SubEpochSpec) -> StepSpec:
    """Return the spec if its models may train as one stack.

    Raises:
        NotApplicableError: user code runs the loop.
    """
    if reason := not_stackable(spec):
        raise NotApplicableError(reason)
    assert isinstance(spec, StepSpec)
    return spec


class GroupTraining:
    """Trains the open members of a fused group.

    Args:
        timing: decides when to take savepoints.
        timings: timings of the group's start.
    """

    def __init__(
        self,
        spec: StepSpec,
        members: tuple[FusedMember, ...],
        context: Context,
        access: GroupAccess,
        timing: SavepointTiming,
        *,
        timings: Timings,
    ) -> None:
        self._spec, self._assigned, self._context, self._access = spec, members, context, access
        self._timing, self._timings = timing, timings
        self._is_saving = self._is_due = False
        self._exits: Mapping[int, float] = {}
        self._trained_at: float | None = None

    def train(self) -> None:
        """Train all open members. Members whose savepoints are at another batch form another stack.

        Raises:
            NotApplicableError: the models cannot train as a stack.
            PreemptedError: the agent preempts the whole group.
            Exception: an error that concerns all open members.
        """
        loading = time.monotonic()
        self._context.device_memory.begin()
        restored: list[_Restored] = []
        for number in self._context.members.open:
            assigned = self._assigned[number]
            found = outcome_of(partial(self._access.restore, assigned.body))
            if isinstance(found, Exception):
                self._context.members.fail(number, found)
                continue
            trainee, resumed = found
            restored.append(_Restored(number=number, assigned=assigned, trainee=trainee, resumed=resumed))
        self._context.device_memory.count_peak_anew()
        self._timings = self._timings.model_copy(update={"load_s": time.monotonic() - loading})
        for first in sorted({each.first for each in restored}):
            self._train_stack([each for each in restored if each.first == first], first)

    def _train_stack(self, restored: list[_Restored], first: int) -> None:
        self._began, self._trained_at = time.monotonic(), None
        lead = restored[0]
        threads = lead.resumed["threads"] if lead.resumed else self._context.cores
        torch.set_num_threads(threads)
        loader = self._access.loader(lead.body, first)
        shared = SharedBatches(loader)
        self._frozen_layers = self._access.frozen_layers(lead.body, loader)
        self._timing.begin(self._began)
        members = {self._member(each, shared, loader): each for each in restored}
        self._lead = lead

        def on_end(member: Member, found: Measured | Exception | PreemptedError) -> None:
            each = members.pop(member)
            if each is self._lead and members:
                self._lead = next(iter(members.values()))
            if isinstance(found, PreemptedError) and self._context.preemption.is_requested:
                return  # the whole group leaves
            ended: TaskResult | BaseException
            if isinstance(found, BaseException):
                ended = found
            else:
                ended = outcome_of(partial(self._result, each, member, found, loader, threads))
            if isinstance(ended, BaseException):
                self._context.members.fail(each.number, ended)
            else:
                self._context.members.finish(each.number, ended)

        where = f"epoch {lead.body.epoch}, partition {lead.body.partition}"
        train_group(self._spec, list(members), on_end, where=where, before_batch=self._before_batch)
        if members:
            raise AssertionError("a member has not ended")
        if self._context.members.open:
            self._context.raise_if_ending()

    def _member(self, each: _Restored, shared: SharedBatches, loader: PartitionLoader) -> Member:
        body, trainee = each.body, each.trainee
        write = self._access.savepoint_writer(body, each.assigned.attempt, trainee, each.number)
        each.savepoints = MemberSavepoints(
            trainee, write=write, resumed=each.resumed, validation=body.validation
        )
        each.recorder = CurveRecorder(self._began) if body.with_curve else None

        def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
            if self._is_due:
                self._context.progress(
                    rows=rows,
                    total_rows=loader.num_rows,
                    batch=batch,
                    values=values,
                    final=True,
                    member=each.number,
                )
            if rows < loader.num_rows:
                self._leave_or_save(each, batch, rows, loader)

        feed = InstrumentedLoader(
            shared.for_member(),
            on_batch,
            lambda: self._is_due,
            epoch=body.epoch,
            sub_epoch=body.sub_epoch,
            position=body.position,
            savepoints=each.savepoints,
            recorder=each.recorder,
        )
        feed.frozen_layers = self._frozen_layers
        return Member(
            name=body.model,
            trainee=trainee,
            feed=feed,
            savepoints=each.savepoints,
            hyperparams=body.hyperparams,
            seed=sub_epoch_seed(body.seed, body.model, body.epoch, body.partition),
            device=self._access.device,
            has_recorder=each.recorder is not None,
        )

    # --- between batches ------------------------------------------------------------------------------

    def _before_batch(self) -> bool:
        self._context.listen()
        self._exits = self._context.members.exits()
        self._is_due = self._context.is_progress_due()
        return self._is_due

    def _leave_or_save(self, each: _Restored, batch: int, rows: int, loader: PartitionLoader) -> None:
        can_save, is_preempted = batch > loader.first, self._context.preemption.is_requested
        if each is self._lead or is_preempted:
            # All members save at the same batch. Of a preempted group, as many as the time permits.
            self._is_saving = can_save and self._timing.is_wanted(each.savepoints, batch, loader)
        left_s = self._exits.get(each.number)
        if self._is_saving or (can_save and left_s is not None and self._timing.fits(left_s)):
            self._timing.take(each.savepoints, batch, rows)
        if left_s is not None:
            raise PreemptedError("the member was asked to leave its group")
        if is_preempted:
            raise PreemptedError(self._context.preemption.reason)

    # --- ends -----------------------------------------------------------------------------------------

    def _result(
        self, each: _Restored, member: Member, metrics: Measured, loader: PartitionLoader, threads: int
    ) -> TaskResult:
        """Write a member's checkpoint and return its result."""
        body, trainee = each.body, each.trainee
        for warning in trainee.warnings:
            log.warning("%s: %s", body.model, warning)
        where = f"epoch {body.epoch}, partition {body.partition}"
        require_mergeable(metrics, body.merges, body.needs, body.model, where)
        trained = self._trained_at = self._trained_at or time.monotonic()
        total = loader.num_rows
        self._context.progress(
            rows=total,
            total_rows=total,
            batch=len(loader),
            values=member.feed.values(),
            final=True,
            member=each.number,
        )
        saving = time.monotonic()
        reference = self._access.save(body, each.assigned.attempt, trainee)
        durations = {"compute_s": trained - self._began, "save_s": time.monotonic() - saving}
        size = body.hyperparams["batch_size"]
        assert isinstance(size, int)
        validation = member.feed.validation
        return TaskResult(
            rows=total,
            cores=threads,
            metrics=numbers_of(metrics),
            ratios=ratios_of(metrics),
            checkpoint=reference,
            resumed_rows=loader.first * size,
            timings=self._timings.model_copy(update=durations),
            curve=each.recorder.curve() if each.recorder is not None else None,
            warnings=tuple(trainee.warnings[:MAX_WARNINGS]),
            validated=validation.epoch + 1 if validation else 0,
        )

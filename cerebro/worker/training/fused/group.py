"""The sub-epoch of a group of models that train as one stack.

`model_hopper` and trials call `train_group`. Members end one by one, with metrics or with an error that concerns only
them, such as a loss that became NaN. A member may also leave between two batches, when its data loader raises
`PreemptedError`; the others continue in a smaller stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from cerebro.errors import NotApplicableError, PreemptedError
from cerebro.steps.loop import autocast, checked_loss, rows_of
from cerebro.steps.spec import StepSpec
from cerebro.worker.training.fused.group_averages import GroupAverages
from cerebro.worker.training.fused.member import Member
from cerebro.worker.training.fused.refusals import explained, is_of_machine, outcome_of
from cerebro.worker.training.fused.stack import Stack
from cerebro.worker.training.metrics import Measured, checked_metrics
from cerebro.worker.training.seeds import has_drawn, seed_everything
from cerebro.worker.training.sub_epoch import using_outputs

OnEnd = Callable[[Member, "Measured | Exception | PreemptedError"], None]
"""Called when a member ends, with its metrics or its error. Its trainee has its weights."""

_SHARED_OPTIONS = ("accumulate", "precision")


def train_group(
    spec: StepSpec,
    members: Sequence[Member],
    on_end: OnEnd,
    *,
    where: str,
    before_batch: Callable[[], bool] = lambda: False,
    before_step: Callable[[Member], None] | None = None,
) -> None:
    """Train models on one partition as a stack.

    Args:
        spec: the user's spec.
        members: models with the same batches.
        on_end: called for each member when it ends.
        where: the sub-epoch in words, for errors.
        before_batch: called before each batch. Returns True if members report live metrics now.
        before_step: called for each member before each optimizer step. Its parameters have gradients then.

    Raises:
        NotApplicableError: the models cannot train as a stack. Restore the members that have not ended again.
        Exception: an error that concerns all members.
    """
    _Group(spec, members, on_end, where, before_batch=before_batch, before_step=before_step).train()


class _Group:
    def __init__(
        self,
        spec: StepSpec,
        members: Sequence[Member],
        on_end: OnEnd,
        where: str,
        *,
        before_batch: Callable[[], bool],
        before_step: Callable[[Member], None] | None,
    ) -> None:
        self._spec, self._on_end, self._where, self._before_batch = spec, on_end, where, before_batch
        self._before_step = before_step
        self._open = list(members)
        self._stack: Stack | None = None
        self._averages = GroupAverages()
        self._outputs = ExitStack()
        """Stored outputs of frozen layers, bound to the modules of the stack."""
        self._latest: Mapping[str, Any] = {}
        """Means of the latest batch, for live metrics."""

    def train(self) -> None:
        for member in self._open[:]:
            error = outcome_of(partial(member.begin, self._spec))
            if error is not None:
                self._open.remove(member)
                self._on_end(member, error)
        seed = 0
        seed_everything(seed)  # members have generators; `has_drawn` shows whether a step used the process's
        while self._open:
            if self._before_batch():
                self._report()
            batch = self._next_batch()
            if batch is None or not self._open:
                break
            is_first = self._stack is None
            if self._stack is None:
                self._make_stack()
            # The stack's frozen layers may be bound after the loader recorded the batch.
            self._open[0].feed.frozen_layers.begin_batch(batch)
            self._train_batch(batch, is_first=is_first)
            if is_first:
                _require_unused_generators(seed)
        _require_unused_generators(seed)
        self._outputs.close()
        self._finish()

    # --- batches --------------------------------------------------------------------------------------

    def _next_batch(self) -> Any:
        """Pass all members' loaders the next batch, and drop members that leave. `None` after the last batch."""
        batches: list[Any] = []
        leaving: list[tuple[Member, PreemptedError]] = []
        for member in self._open:
            try:
                batches.append(next(member.batches, None))
            except PreemptedError as error:  # other errors concern all members, which read the same batch
                leaving.append((member, error))
        if leaving:
            self._drop({self._open.index(member) for member, _ in leaving})
            for member, reason in leaving:
                self._on_end(member, reason)
        return batches[0] if batches else None

    def _train_batch(self, batch: Any, *, is_first: bool) -> None:
        assert self._stack is not None
        lead = self._open[0]
        step = self._training_step(batch)
        try:
            metrics = self._stack.compute(step, weight=1 / lead.options.accumulate)
        except NotApplicableError:
            raise
        except Exception as problem:
            if not is_first or is_of_machine(problem):
                raise
            stack = self._stack
            raise explained(problem, lambda: stack.compute(step), stack.modules) from problem
        if lead.is_step:
            if self._before_step is not None:
                for position, member in enumerate(self._open):
                    with self._stack.separate(position):
                        self._before_step(member)
            self._stack.step(self._max_norms())
            for member in self._open:
                member.after_step()
        self._latest = self._averages.add(metrics, rows_of(batch, lead.feed))
        for member in self._open:
            if member.has_recorder:
                self._report_of(member)

    def _training_step(self, batch: Any) -> Callable[[list[nn.Module], Mapping[str, Any]], Mapping[str, Any]]:
        options = self._open[0].options

        def step(modules: list[nn.Module], hyperparams: Mapping[str, Any]) -> Mapping[str, Any]:
            with autocast(modules, options) if options.precision != "float32" else nullcontext():
                returned = self._spec.training_step(modules, batch, hyperparams)
            loss, metrics = checked_loss(returned, is_stacked=True)
            return {**metrics, "loss": loss}

        return step

    def _max_norms(self) -> list[float] | None:
        limits = [each.options.clip_norm for each in self._open]
        if all(limit is None for limit in limits):
            return None
        return [math.inf if limit is None else limit for limit in limits]

    # --- members --------------------------------------------------------------------------------------

    def _make_stack(self) -> None:
        lead = self._open[0]
        for other in self._open[1:]:
            for name in _SHARED_OPTIONS:
                one, two = getattr(lead.options, name), getattr(other.options, name)
                if one != two:
                    raise NotApplicableError(
                        f"models {lead.name} and {other.name} cannot train as one stack: {name} is {one!r} and {two!r}"
                    )
            if lead.total_steps != other.total_steps:
                raise NotApplicableError(
                    f"models {lead.name} and {other.name} cannot train as one stack: they train for "
                    f"{lead.total_steps} and {other.total_steps} steps"
                )
        if lead.options.precision == "fp16":
            raise NotApplicableError(
                "models with precision 'fp16' cannot train as one stack, because each scales its loss on its own: use "
                "'bf16' or 'float32'"
            )
        self._averages.begin([each.totals for each in self._open])
        self._stack = Stack([each.model for each in self._open])
        self._connect()

    def _connect(self) -> None:
        assert self._stack is not None
        self._outputs.close()
        if self._stack.has_shared_layers:
            self._outputs.enter_context(using_outputs(self._stack.modules, self._open[0].feed))
        for position, member in enumerate(self._open):
            member.separate = lambda position=position: self._separate(position)  # type: ignore[misc]

    @contextmanager
    def _separate(self, position: int) -> Iterator[None]:
        assert self._stack is not None
        self._averages.write(position, self._open[position].totals)
        with self._stack.separate(position):
            yield

    def _drop(self, positions: set[int]) -> None:
        if self._stack is not None:
            for position in positions:
                self._release(position)
        dropped = self._stack
        self._open = [each for position, each in enumerate(self._open) if position not in positions]
        if dropped is not None and self._open:
            self._stack = dropped.without(positions)
            self._averages.keep([n for n in range(len(dropped.models)) if n not in positions])
            self._latest = {}
            self._connect()

    def _release(self, position: int) -> None:
        assert self._stack is not None
        self._stack.release(position)
        self._averages.write(position, self._open[position].totals)
        self._open[position].separate = nullcontext

    def _finish(self) -> None:
        for position in range(len(self._open)) if self._stack is not None else ():
            self._report_of(self._open[position])
            self._release(position)
        self._stack = None
        for member in self._open:
            self._on_end(member, outcome_of(partial(self._end, member)))

    def _end(self, member: Member) -> Measured:
        metrics = checked_metrics(member.metrics(), "training_step", self._where)
        member.end()
        return metrics

    # --- live metrics ---------------------------------------------------------------------------------

    def _report(self) -> None:
        for member in self._open:
            self._report_of(member)

    def _report_of(self, member: Member) -> None:
        position = self._open.index(member)
        member.feed.report(
            **{
                name: value[position] if isinstance(value, torch.Tensor) else value
                for name, value in self._latest.items()
            }
        )


def _require_unused_generators(seed: int) -> None:
    if has_drawn(seed):
        raise NotApplicableError(
            "models cannot train as one stack: training_step() draws from Python's or NumPy's generator, so all models "
            "would get the same numbers. Use torch.rand or torch.randn"
        )

"""Techniques with one error each, and a right one with another random stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from cerebro.spec import DataLoader, Hints
from cerebro.techniques import Ddp, Fsdp, Group, Params, Technique
from cerebro.techniques.ddp import _route_through_ddp

_PLAIN = torch.autograd.backward


class _Unweighted(Technique):
    """Averages the ranks' gradients without weighting them by row count."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        weighted, torch.autograd.backward = torch.autograd.backward, _PLAIN
        with super().running(modules, feed, group, params):
            yield
        torch.autograd.backward = weighted


class NoWeights(_Unweighted, Ddp):
    """Replicas."""


class NoWeightsOfParts(_Unweighted, Fsdp):
    """A sharded model."""


class _Dropping(Technique):
    """Skips the first batch."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        with super().running(modules, feed, group, params):
            cast(Any, feed)._loader.first = 1
            yield


class DroppedBatch(_Dropping, Ddp):
    """Replicas."""


class DroppedBatchOfParts(_Dropping, Fsdp):
    """A sharded model."""


class _Stepping(Technique):
    """Makes each optimizer step twice."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        is_again = False

        def step(optimizer: Optimizer, *_: Any) -> None:
            nonlocal is_again
            if not is_again:
                is_again = True
                optimizer.step()
                is_again = False

        hook = register_optimizer_step_post_hook(step)
        try:
            with super().running(modules, feed, group, params):
                yield
        finally:
            hook.remove()


class ExtraStep(_Stepping, Ddp):
    """Replicas."""


class ExtraStepOfParts(_Stepping, Fsdp):
    """A sharded model."""


class _Reordering(Technique):
    """The last rank reads rows in the order of another seed."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        cast(Any, feed)._loader._seed += group.rank == group.size - 1
        with super().running(modules, feed, group, params):
            yield


class OtherRows(_Reordering, Ddp):
    """Replicas."""


class OtherRowsOfParts(_Reordering, Fsdp):
    """A sharded model."""


class _Redrawing(Technique):
    """A right technique whose dropout masks differ."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        torch.manual_seed(1000 + group.rank)
        with super().running(modules, feed, group, params):
            yield


class OtherDropout(_Redrawing, Ddp):
    """Replicas."""


class OtherDropoutOfParts(_Redrawing, Fsdp):
    """A sharded model."""


class _Scaling(Technique):
    """Multiplies the gradients by `factor`."""

    factor = 2.0

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            is_first = torch._C._current_graph_task_id() == -1 and torch.autograd.backward is backward
            torch.autograd.backward = original
            try:
                original(tensors * self.factor if is_first else tensors, *args, **kwargs)
            finally:
                torch.autograd.backward = backward

        torch.autograd.backward = backward
        try:
            with super().running(modules, feed, group, params):
                yield
        finally:
            torch.autograd.backward = original


class Doubled(_Scaling, Ddp):
    """Replicas."""


class DoubledOfParts(_Scaling, Fsdp):
    """A sharded model."""


class SlightlyTooLarge(Doubled):
    """Gradients 1 % too large."""

    factor = 1.01


class SlightlyTooLargeOfParts(DoubledOfParts):
    """Gradients 1 % too large."""

    factor = 1.01


class LastTooLarge(Ddp):
    """The last parameter's gradient is a quarter too large."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        super().prepare(modules, group, params, hints)
        for module in modules:
            last: Any = list(module.parameters())[-1]
            last.register_hook(lambda gradient: 1.25 * gradient)


class SkippedParameter(Ddp):
    """Each rank keeps its own gradient of one parameter."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        for module in modules:
            first = next(module.parameters())
            skipped = [name for name, one in module.named_parameters(remove_duplicate=False) if one is first]
            ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
            ignore(module, skipped)
        super().prepare(modules, group, params, hints)


class FrozenParameter(Fsdp):
    """One parameter is not trained."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        super().prepare(modules, group, params, hints)
        for module in modules:
            next(module.parameters()).requires_grad_(False)


class Forgetful(Ddp):
    """Each rank trains independently."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Do nothing."""


class Blind(Ddp):
    """Ignores modules that couple rows."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        for module in modules:
            _route_through_ddp(module, group, params, hints)


WRONG: dict[str, tuple[type[Technique], ...]] = {
    "no weights": (NoWeights, NoWeightsOfParts),
    "a dropped batch": (DroppedBatch, DroppedBatchOfParts),
    "an extra step": (ExtraStep, ExtraStepOfParts),
    "another data seed": (OtherRows, OtherRowsOfParts),
    "gradients twice as large": (Doubled, DoubledOfParts),
    "gradients larger by 1 %": (SlightlyTooLarge, SlightlyTooLargeOfParts),
    "a skipped parameter": (SkippedParameter, FrozenParameter),
    "ranks that train by themselves": (Forgetful,),
}
"""These errors matter for any model if the ranks' shares of a batch differ in size."""

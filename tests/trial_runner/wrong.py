"""Techniques that are wrong in one way each, and one that is right and draws other numbers."""

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
    """Averages the ranks' gradients whatever their shares are."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        weighted, torch.autograd.backward = torch.autograd.backward, _PLAIN
        with super().running(modules, feed, group, params):
            yield
        torch.autograd.backward = weighted


class NoWeights(_Unweighted, Ddp):
    """Of replicas."""


class NoWeightsOfParts(_Unweighted, Fsdp):
    """Of a sharded model."""


class _Dropping(Technique):
    """Leaves out the first batch."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        with super().running(modules, feed, group, params):
            cast(Any, feed)._loader.first = 1
            yield


class DroppedBatch(_Dropping, Ddp):
    """By replicas."""


class DroppedBatchOfParts(_Dropping, Fsdp):
    """By ranks of a sharded model."""


class _Stepping(Technique):
    """Has optimizers step twice."""

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
    """Of replicas."""


class ExtraStepOfParts(_Stepping, Fsdp):
    """Of a sharded model."""


class _Reordering(Technique):
    """The last rank reads rows that were drawn from another seed."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        cast(Any, feed)._loader._seed += group.rank == group.size - 1
        with super().running(modules, feed, group, params):
            yield


class OtherRows(_Reordering, Ddp):
    """Of replicas."""


class OtherRowsOfParts(_Reordering, Fsdp):
    """Of a sharded model."""


class _Redrawing(Technique):
    """Right: drops other entries than another technique would."""

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        torch.manual_seed(1000 + group.rank)
        with super().running(modules, feed, group, params):
            yield


class OtherDropout(_Redrawing, Ddp):
    """By replicas."""


class OtherDropoutOfParts(_Redrawing, Fsdp):
    """By ranks of a sharded model."""


class _Scaling(Technique):
    """Gradients are too large."""

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
    """Of replicas."""


class DoubledOfParts(_Scaling, Fsdp):
    """Of a sharded model."""


class SlightlyTooLarge(Doubled):
    """By one per cent."""

    factor = 1.01


class SlightlyTooLargeOfParts(DoubledOfParts):
    """By one per cent."""

    factor = 1.01


class LastTooLarge(Ddp):
    """The gradient of the last parameter, by a quarter."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        super().prepare(modules, group, params, hints)
        for module in modules:
            last: Any = list(module.parameters())[-1]
            last.register_hook(lambda gradient: 1.25 * gradient)


class SkippedParameter(Ddp):
    """Of one parameter each rank keeps its own gradient."""

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
    """Each rank trains by itself."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Nothing."""


class Blind(Ddp):
    """Takes no notice of modules that couple rows."""

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
"""On whatever model, where the shares of a batch are not all of one size."""

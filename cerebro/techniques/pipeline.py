"""Pipelining: one process with the model's stages on several devices and each batch in parts.

It is GPipe (arXiv 1811.06965) with torch's autograd, for one module that is a sequence of stages. The parts' results
are concatenated, so user code sees a full batch, and `loss.backward()` runs the pipeline in reverse. On GPUs, a stage
computes one part while the next stage computes the previous part. There are no ranks, and all state is plain. It does
not cross workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.ragged_rows import Ragged
from cerebro.spec import Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Technique
from cerebro.techniques.checkpointing import CHECKPOINTING, not_repeated, recompute_if_asked
from cerebro.techniques.single import not_one_module, state_bytes, too_large

if TYPE_CHECKING:
    from torch import nn

_PARTS = "parts"

_NO_STAGES = "its forward is not known to be a sequence: name its stages, in order, in Hints(stages=...)"


class Pipeline(Technique):
    """A sequence of stages, balanced by bytes, with one device for each stage group."""

    name = "pipeline"
    least = 2
    parameters: ClassVar = MappingProxyType({_PARTS: (2, 4, 8, 16, 32, 64), CHECKPOINTING: (False, True)})
    processes = "one"

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> tuple[Params, ...]:
        """Return a number of parts, with and without recomputed activations.

        More parts reduce the idle time of devices but make each computation smaller.
        """
        least = next(parts for parts in self.parameters[_PARTS] if parts >= min(2 * devices.size, 64))
        return ({_PARTS: least}, *([{_PARTS: least, CHECKPOINTING: True}] if facts.layers else []))

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require one module with enough stages, and rows that are computed independently."""
        if devices.size < 2:
            return "it puts stages on several devices, and there is one device"
        if reason := not_one_module(facts.num_modules):
            return reason
        if facts.stages < devices.size:
            return f"{facts.stages} stages for {devices.size} devices" if facts.stages else _NO_STAGES
        if facts.coupled:
            return _coupled(facts.coupled)
        return not_repeated(facts, params) or too_large(self.memory(facts, devices, params), devices)

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return an equal part of the state for each device."""
        return Memory(device=-(-state_bytes(facts) // devices.size))

    def made_on(self, group: Group, params: Params) -> str:
        """Return the host, because the full model may not fit a device."""
        return "cpu"

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Move each stage to its device and run the module as a pipeline."""
        from cerebro.techniques.facts import coupled, num_bytes, only_trained, stages

        module = only_trained(modules)
        if name := coupled(module):
            raise NotApplicableError(_coupled(name))
        try:
            named_stages = stages(module, hints)
        except AttributeError as error:
            raise NotApplicableError(f"Hints(stages=...) names what is no module: {error}") from error
        if not named_stages:
            raise NotApplicableError(_NO_STAGES)
        _require_partition(module, named_stages)
        if len(named_stages) < len(group.devices):
            raise NotApplicableError(f"{len(named_stages)} stages for {len(group.devices)} devices")
        recompute_if_asked(modules, params, hints)
        places = balanced([num_bytes(stage.parameters()) for _, stage in named_stages], len(group.devices))
        for (_, stage), number in zip(named_stages, places, strict=True):
            stage.to(group.devices[number])
        placed = [
            (stage, group.devices[number]) for (_, stage), number in zip(named_stages, places, strict=True)
        ]
        parts = params.get(_PARTS, 2 * len(group.devices))
        _call_instead(module, partial(_run, placed, parts))

    @contextmanager
    def running(self, modules: list[nn.Module], feed: Any, group: Group, params: Params) -> Iterator[None]:
        """Move inputs to the first device and outputs to the last, where the model's results are."""
        first, last = group.devices[0], group.devices[-1]
        if last != first:
            feed.place = lambda batch: (_to_device(batch[0], first), _to_device(batch[1], last))
        yield


def balanced(sizes: Sequence[int], devices: int) -> list[int]:
    """Assign consecutive stages to devices so that the largest device is as small as possible.

    Args:
        sizes: bytes of the stages, at least one stage per device.
        devices: number of devices.

    Returns:
        The device number of each stage.
    """
    # Dynamic programming: best[n] is the smallest possible largest sum of the first n stages on `device` devices.
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    count = len(sizes)
    best: list[float] = [float(total) for total in sums]
    cuts: list[list[int]] = []
    for device in range(2, devices + 1):
        sums_by_end, cut = [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(device, count + 1):
            for start in range(device - 1, end):
                largest = max(best[start], sums[end] - sums[start])
                if largest < sums_by_end[end]:
                    sums_by_end[end], cut[end] = largest, start
        best = sums_by_end
        cuts.append(cut)
    places, end = [0] * count, count
    for device in range(devices - 1, 0, -1):
        start = cuts[device - 1][end]
        places[start:end] = [device] * (end - start)
        end = start
    return places


def _coupled(name: str) -> str:
    return f"{name} computes over all rows of a batch, which are not computed together here"


def _require_partition(module: nn.Module, named_stages: Sequence[tuple[str, nn.Module]]) -> None:
    """Require that each parameter and buffer is in exactly one stage.

    Raises:
        NotApplicableError: a parameter or buffer is in no stage or in several.
    """
    holders: dict[int, list[str]] = {}
    for name, stage in named_stages:
        for one in {id(tensor) for tensor in (*stage.parameters(), *stage.buffers())}:
            holders.setdefault(one, []).append(name)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        stage_names = holders.get(id(tensor), [])
        if len(stage_names) != 1:
            where = f"in the stages {' and '.join(stage_names)}" if stage_names else "in no stage"
            raise NotApplicableError(
                f"{name} is {where}, but each parameter must be in exactly one; see Hints(stages=...)"
            )


def _run(placed: Sequence[tuple[nn.Module, str]], parts: int, *args: Any, **kwargs: Any) -> Any:
    """Run all stages for each part of the batch."""
    rows = _rows((args, kwargs))
    count = max(1, min(parts, rows))
    edges = [rows * number // count for number in range(count + 1)]
    results = []
    for begin, end in itertools.pairwise(edges):
        (first, device), *rest = placed
        part_args, part_kwargs = _to_device(_rows_of((args, kwargs), begin, end, rows), device)
        hidden = first(*part_args, **part_kwargs)
        for stage, device in rest:
            hidden = stage(_to_device(hidden, device))
        results.append(hidden)
    return results[0] if len(results) == 1 else _concatenated(results)


def _call_instead(module: nn.Module, run: Any) -> None:
    """Route calls of the module, but not of its copies, to `run`."""
    original = type(module)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not module:
            return original.__call__(self, *args, **kwargs)
        return run(*args, **kwargs)

    calls = {"__call__": call, "__module__": original.__module__, "__qualname__": original.__qualname__}
    module.__class__ = type(original.__name__, (original,), calls)


def _rows(tree: Any) -> int:
    """Return the rows of the batch, from its first tensor or `Ragged`."""
    from torch.utils import _pytree

    batched = [leaf for leaf in _pytree.tree_leaves(tree, is_leaf=_is_ragged) if _has_rows(leaf)]
    return len(batched[0]) if batched else 0


def _is_ragged(value: object) -> bool:
    return isinstance(value, Ragged)


def _has_rows(leaf: object) -> bool:
    import torch

    return isinstance(leaf, Ragged) or (isinstance(leaf, torch.Tensor) and leaf.dim() > 0)


def _rows_of(tree: Any, begin: int, end: int, rows: int) -> Any:
    from torch.utils import _pytree

    def cut(leaf: Any) -> Any:
        return leaf[begin:end] if _has_rows(leaf) and len(leaf) == rows else leaf

    return _pytree.tree_map(cut, tree, is_leaf=_is_ragged)


def _to_device(tree: Any, device: str) -> Any:
    import torch
    from torch.utils import _pytree

    def move(leaf: Any) -> Any:
        is_moved = isinstance(leaf, (torch.Tensor, Ragged))
        return leaf.to(device, non_blocking=True) if is_moved else leaf

    return _pytree.tree_map(move, tree, is_leaf=_is_ragged)


def _concatenated(trees: list[Any]) -> Any:
    import torch
    from torch.utils import _pytree

    def join(*leaves: Any) -> Any:
        if isinstance(leaves[0], Ragged):
            return Ragged.cat(leaves)
        return torch.cat(leaves) if _has_rows(leaves[0]) else leaves[0]

    return _pytree.tree_map(join, *trees, is_leaf=_is_ragged)

"""Sharded data parallelism and offloading: parameters, gradients and optimizer state in parts (FSDP2 of torch).

Parameters become DTensors in place, under the same names. A block's are put together while it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import DataLoader, Hints
from cerebro.techniques.base import Group, Memory, ModelFacts, Params, Place, Share, Technique
from cerebro.techniques.checkpointing import CHECKPOINTING, not_repeated, recompute_if_asked
from cerebro.techniques.ddp import not_shared, require_apart, synchronize_norms
from cerebro.techniques.float8 import EMULATED, FLOAT8, not_computed, to_float8
from cerebro.techniques.single import not_one, too_large

if TYPE_CHECKING:
    from torch import nn

_PRECISIONS = ("bf16", FLOAT8, EMULATED)
"""In float8 are products of matrices; all else is in bfloat16 then."""
_PRECISION, _RESHARD, _ACTIVATIONS = "precision", "reshard", "activations"

_REFUSED = {
    "got mixed torch.Tensor and DTensor": "train() computes with parameters themselves and plain tensors together",
    "FSDP does not support deepcopy": "train() copies a module by copy.deepcopy()",
    "Cannot access data pointer": "train() looks at the memory of a parameter",
}
"""What torch says where user code does to a sharded parameter what cannot be done -> the reason, for people."""


class _Sharding(Technique):
    """What `Fsdp` and `Offload` have in common."""

    def is_exact(self, params: Params) -> bool:
        """Another precision changes results."""
        return _PRECISION not in params

    def made_on(self, group: Group, params: Params) -> str:
        """The host: the whole model need not fit a device."""
        return "cpu"

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Part the parameters of each block and module, which are put together while it computes."""
        from torch.distributed.fsdp import register_fsdp_forward_method

        precision = params.get(_PRECISION)
        if precision in (FLOAT8, EMULATED):
            to_float8(modules, group, is_emulated=precision == EMULATED)
        recompute_if_asked(modules, params, hints)
        require_apart(modules)
        for module in modules:
            synchronize_norms(module, group)
            if not any(True for _ in module.parameters()):
                module.to(group.device)
                continue
            self._shard(module, group, params, hints)
            for name in hints.methods:
                if hasattr(module, name):
                    register_fsdp_forward_method(module, name)

    def _shard(self, module: nn.Module, group: Group, params: Params, hints: Hints) -> None:
        from torch.distributed.fsdp import fully_shard

        options = {"mesh": group.mesh, **self._options(group, params)}
        try:
            for block in _separable(module, hints):
                fully_shard(block, **options)
            fully_shard(module, **options)
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise NotApplicableError(f"torch cannot shard {type(module).__name__}: {error}") from error

    def _options(self, group: Group, params: Params) -> dict[str, Any]:
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy

        if _PRECISION not in params:
            return {}
        # Gradients are added up in full precision, and so are the weights that the optimizer keeps.
        return {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Say which use of a parameter a sharded model does not allow."""
        try:
            yield
        except Exception as error:
            for said, reason in _REFUSED.items():
                if said in str(error):
                    raise NotApplicableError(f"{reason}, which sharded parameters do not allow") from error
            raise


class Fsdp(_Sharding):
    """`fully_shard` of each block and of the module, over all ranks; each reads its share of each batch."""

    name = "fsdp"
    least = 2
    parameters: ClassVar = MappingProxyType(
        {_RESHARD: (True, False), CHECKPOINTING: (False, True), _PRECISION: _PRECISIONS}
    )

    def variants(self, facts: ModelFacts, place: Place) -> tuple[Params, ...]:
        """To compute activations once more takes time, and spares memory."""
        return ({}, {CHECKPOINTING: True}) if facts.layers else ({},)

    def is_applicable(self, facts: ModelFacts, place: Place, params: Params) -> str:
        """It needs several devices, a row for each, and a part of the state to fit each."""
        return (
            not_shared(facts, place)
            or not_computed(params.get(_PRECISION), place)
            or not_repeated(facts, params)
            or too_large(self.memory(facts, place, params), place)
        )

    def memory(self, facts: ModelFacts, place: Place, params: Params) -> Memory:
        """A part of the state, and a whole block of parameters and gradients; without blocks, all of them."""
        state = facts.param_bytes + facts.trainable_bytes + (facts.optimizer_bytes or 0)
        whole = 2 * (facts.block_bytes or facts.param_bytes)
        return Memory(device=-(-state // place.size) + whole + facts.buffer_bytes, host=facts.param_bytes)

    def share(self, group: Group) -> Share:
        """A rank reads its part of the rows."""
        return Share(index=group.rank, of=group.size)

    def _options(self, group: Group, params: Params) -> dict[str, Any]:
        return {"reshard_after_forward": params.get(_RESHARD, True), **super()._options(group, params)}


class Offload(_Sharding):
    """Parameters, gradients and optimizer state on the host; a block's parameters are on the device while it computes.

    The user's optimizer steps on the CPU.
    """

    name = "offload"
    most = 1
    parameters: ClassVar = MappingProxyType(
        {CHECKPOINTING: (False, True), _ACTIVATIONS: (False, True), _PRECISION: _PRECISIONS}
    )
    processes = "one"

    def variants(self, facts: ModelFacts, place: Place) -> tuple[Params, ...]:
        """With less memory on the device each, and more time."""
        more = ({CHECKPOINTING: True}, {CHECKPOINTING: True, _ACTIVATIONS: True})
        return ({}, *more) if facts.layers else ({}, {_ACTIVATIONS: True})

    def is_applicable(self, facts: ModelFacts, place: Place, params: Params) -> str:
        """It needs the model's state to fit the host."""
        return (
            not_one(place)
            or not_computed(params.get(_PRECISION), place)
            or not_repeated(facts, params)
            or too_large(self.memory(facts, place, params), place)
        )

    def helps(self, place: Place) -> bool:
        """A CPU's memory is the host's."""
        return place.kind == "gpu"

    def memory(self, facts: ModelFacts, place: Place, params: Params) -> Memory:
        """The state on the host, with an optimizer like Adam while that is not known; two blocks on the device."""
        optimizer = 2 * facts.trainable_bytes if facts.optimizer_bytes is None else facts.optimizer_bytes
        device = 2 * (facts.block_bytes or facts.param_bytes) + facts.buffer_bytes
        return Memory(device=device, host=facts.param_bytes + facts.trainable_bytes + optimizer)

    def _options(self, group: Group, params: Params) -> dict[str, Any]:
        from torch.distributed.fsdp import CPUOffloadPolicy

        return {
            "offload_policy": CPUOffloadPolicy(pin_memory=_is_gpu(group)),
            **super()._options(group, params),
        }

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Keep what the backward pass needs on the host, where that is wanted."""
        from torch.autograd.graph import save_on_cpu

        with ExitStack() as stack:
            stack.enter_context(super().running(modules, feed, group, params))
            if params.get(_ACTIVATIONS):
                stack.enter_context(save_on_cpu(pin_memory=_is_gpu(group)))
            yield


def _is_gpu(group: Group) -> bool:
    return group.device.startswith("cuda")


def _separable(module: nn.Module, hints: Hints) -> list[nn.Module]:
    """The blocks that share no parameter with what is outside of them: shared ones must be put together at once."""
    from cerebro.techniques.facts import blocks

    holders: dict[int, int] = {}
    found = blocks([module], hints)
    for block in found:
        for parameter in {id(one) for one in block.parameters()}:
            holders[parameter] = holders.get(parameter, 0) + 1
    inside = {id(part) for block in found for part in block.modules()}
    outside = {
        id(one)
        for part in module.modules()
        if id(part) not in inside
        for one in part.parameters(recurse=False)
    }
    return [
        block
        for block in found
        if all(holders[id(one)] == 1 and id(one) not in outside for one in block.parameters())
        and any(True for _ in block.parameters())
    ]

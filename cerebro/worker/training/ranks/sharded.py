"""Cut full tensors to match sharded parameters, without communication between ranks.

`GroupTrainee` uses it when it restores a state and around the user's `train`. A checkpoint contains full tensors of an
optimizer or of averaged weights. When user code loads one for a DTensor parameter, it is cut in the same way; torch
cannot combine full and sharded tensors (pytorch#136336). `full_tensors` does the reverse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

_GROUPS = "param_groups"


def cut(value: torch.Tensor, like: DTensor) -> DTensor:
    """Return this rank's part of a full tensor, cut like a parameter of the same shape.

    Tensors of other shapes, such as a sum over one dimension, stay complete on every rank.
    """
    mesh = like.device_mesh
    same = value.shape == like.shape
    placements = like.placements if same else (Replicate(),) * mesh.ndim
    sizes, offsets = compute_local_shape_and_global_offset(value.shape, mesh, placements)
    part = value[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))]
    # A copy, so that the full tensor's memory is freed.
    local = part.detach().to(like.to_local().device, copy=True).contiguous()
    meta = TensorMeta(value.shape, value.stride(), value.dtype)
    # `DTensor.from_local` would move host tensors to the mesh's devices.
    return DTensor(local, DTensorSpec(mesh, placements, tensor_meta=meta), requires_grad=False)  # type: ignore[no-untyped-call]


@contextmanager
def cut_optimizer_states() -> Iterator[None]:
    """Make every optimizer accept full tensors for the state of sharded parameters.

    Replaces a method of `torch.optim.Optimizer` for the whole process.
    """
    original = torch.optim.Optimizer.load_state_dict

    def load_state_dict(self: torch.optim.Optimizer, state_dict: Any) -> None:
        original(self, _cut_for(self, state_dict))

    torch.optim.Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.optim.Optimizer.load_state_dict = original  # type: ignore[method-assign]


def _cut_for(optimizer: torch.optim.Optimizer, saved: Any) -> Any:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if not any(isinstance(one, DTensor) for one in parameters):
        return saved
    numbers = [number for group in saved[_GROUPS] for number in group["params"]]
    if len(numbers) != len(parameters):
        return saved  # torch reports the mismatch
    owners = dict(zip(numbers, parameters, strict=True))
    state = {number: _cut_values(values, owners.get(number)) for number, values in saved["state"].items()}
    return {**saved, "state": state}


def _cut_values(kept: Any, parameter: torch.Tensor | None) -> Any:
    if not isinstance(kept, Mapping) or not isinstance(parameter, DTensor):
        return kept
    return {name: cut(value, parameter) if _is_whole(value) else value for name, value in kept.items()}


def _is_whole(value: Any) -> bool:
    """True if it is a tensor that must be cut; a number, such as a count of steps, is the same on all ranks."""
    return isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.dim() > 0


def cut_named(
    kept: MutableMapping[str, Any], modules: Sequence[torch.nn.Module], *, except_for: Collection[str]
) -> None:
    """Cut user code's entries named like sharded parameters, such as averaged weights; in place.

    Args:
        kept: the user's `checkpoint`.
        except_for: keys to skip: tracked objects load their own entries.
    """
    named = [dict(module.named_parameters()) for module in modules]
    for key, value in kept.items():
        if key not in except_for and type(value) is dict and value:
            for parameters in named:
                if all(_is_of(parameters.get(name), tensor) for name, tensor in value.items()):
                    kept[key] = {
                        name: _cut_values({name: tensor}, parameters[name])[name]
                        for name, tensor in value.items()
                    }
                    break


def _is_of(parameter: torch.Tensor | None, tensor: object) -> bool:
    return parameter is not None and isinstance(tensor, torch.Tensor) and tensor.shape == parameter.shape

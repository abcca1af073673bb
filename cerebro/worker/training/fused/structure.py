"""Which models can be stacked: equal modules, parameters and settings.

`stack` calls `require_alike` before it stacks; `cerebro.worker.training.facts` uses `settings` for the signature of a
model. Learning rates and other settings of optimizers may differ, because each member keeps its own optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cerebro.errors import NotApplicableError
from cerebro.spec import SubEpochSpec
from cerebro.steps.spec import StepSpec
from cerebro.usercode.checks import defining_method

Modules = Sequence[nn.Module]

_INTERNAL = frozenset(vars(nn.Module()))
_SCALARS = (bool, int, float, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)


def not_stackable(spec: SubEpochSpec) -> str:
    """Return why models of a spec cannot train as one stack, or "": Cerebro must run their loop."""
    if isinstance(spec, StepSpec) and defining_method(spec, "train") == "training_step":
        return ""
    return (
        f"models of {type(spec).__name__} cannot train as one stack: use a StepSpec that defines training_step() and "
        "does not override train()"
    )


def require_alike(models: Mapping[str, Modules]) -> None:
    """Raise NotApplicableError unless the models can be stacked.

    Args:
        models: name of each model -> its modules.
    """
    (first, reference), *rest = [(name, _described(modules)) for name, modules in models.items()]
    for name, described in rest:
        for what in {**reference, **described}:
            one, other = reference.get(what), described.get(what)
            if not _are_equal(one, other):
                raise NotApplicableError(
                    f"models {first} and {name} cannot train as one stack: {what} is {_short(one)} in {first} and "
                    f"{_short(other)} in {name}"
                )


def settings(module: nn.Module) -> dict[str, Any]:
    """Return a module's own plain attributes, such as the rate of a Dropout: name -> value."""
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if name not in _INTERNAL
        and name != "_flat_weight_refs"
        and not _has_parameters(value)
        and _is_plain(value)
    }


def tensors(modules: Modules) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Yield each occurrence of a parameter or buffer: its name, its module, its name there and itself."""
    for number, root in enumerate(modules):
        for path, module in root.named_modules():
            where = f"{number}/{path}." if path else f"{number}/"
            for kind in (module._parameters, module._buffers):
                for name, tensor in kind.items():
                    if tensor is not None:
                        yield where + name, module, name, tensor


def _described(modules: Modules) -> dict[str, Any]:
    facts: dict[str, Any] = {"number of modules": len(modules)}
    for number, root in enumerate(modules):
        for path, module in root.named_modules():
            where = f"module {number}" + (f" ({path})" if path else "")
            facts[f"the class of {where}"] = type(module)
            for name, value in settings(module).items():
                facts[f"{name} of {where}"] = value
    visited: dict[int, str] = {}
    for name, _, _, tensor in tensors(modules):
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        shared = visited.setdefault(id(tensor), name)
        facts[f"{kind} {name}"] = (tuple(tensor.shape), tensor.dtype, tensor.requires_grad, shared)
    return facts


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, (*_SCALARS, torch.Tensor))


def _has_parameters(value: Any) -> bool:
    """True for lists such as `_flat_weights`, whose tensors are compared as parameters."""
    return isinstance(value, list | tuple) and any(isinstance(each, nn.Parameter) for each in value)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_equal(each, other[key]) for key, each in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    if value is None:
        return "missing"
    text = value.__qualname__ if isinstance(value, type) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

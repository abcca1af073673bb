"""What can be seen of a model without training it: sizes, repeated blocks, what couples rows. Needs torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from cerebro.spec import Hints
from cerebro.techniques.base import ModelFacts


def facts(modules: Sequence[nn.Module], hints: Hints, *, batch_size: int, signature: str = "") -> ModelFacts:
    """Of a model, which may lie on device ``meta``.

    Args:
        modules: what `create_models` returned.
        signature: see `ModelFacts`.
    """
    # Parameters that several modules share count once.
    parameters = {id(one): one for module in modules for one in module.parameters()}.values()
    buffers = {id(one): one for module in modules for one in module.buffers()}.values()
    repeated = [block for module in modules for block in blocks(module, hints)]
    trained = [module for module in modules if any(True for _ in module.parameters())]
    return ModelFacts(
        signature=signature,
        param_bytes=num_bytes(parameters),
        trainable_bytes=num_bytes(one for one in parameters if one.requires_grad),
        buffer_bytes=num_bytes(buffers),
        block_bytes=max((num_bytes(block.parameters()) for block in repeated), default=0),
        batch_size=batch_size,
        layers=dict(Counter(type(block).__name__ for block in repeated)),
        num_modules=len(trained),
        coupled=next(filter(None, map(coupled, modules)), ""),
        stages=len(stages(trained[0], hints)) if len(trained) == 1 else 0,
        splits=tuple(splits(trained[0], hints)) if len(trained) == 1 else (),
    )


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of all of them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def coupled(module: nn.Module) -> str:
    """Name of a module whose result for a row depends on the other rows of its batch; empty if none is found."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return f"{name or 'the module itself'} ({type(part).__name__})"
    return ""


def blocks(module: nn.Module, hints: Hints) -> list[nn.Module]:
    """The modules that are repeated: those of the classes that the user names or, of the children of a list or
    sequence, those of the repeated class that has most parameters. None of them lies in another one."""
    kinds = hints.blocks or _repeated(module)
    return list(_outermost(module, kinds)) if kinds else []


def _repeated(module: nn.Module) -> tuple[type, ...]:
    counts: Counter[type] = Counter()
    sizes: Counter[type] = Counter()
    for holder in module.modules():
        if isinstance(holder, nn.ModuleList | nn.Sequential):
            for child in holder.children():
                counts[type(child)] += 1
                sizes[type(child)] += num_bytes(child.parameters())
    found = [kind for kind in counts if counts[kind] > 1 and sizes[kind] > 0]
    return (max(found, key=lambda kind: sizes[kind]),) if found else ()


def _outermost(module: nn.Module, kinds: tuple[type, ...]) -> Iterator[nn.Module]:
    seen: set[int] = set()
    for child in module.children():
        if isinstance(child, kinds):
            if id(child) not in seen:
                yield child
        else:
            yield from _outermost(child, kinds)
        seen.add(id(child))


def stages(module: nn.Module, hints: Hints) -> list[tuple[str, nn.Module]]:
    """Modules whose calls one after another are the model's forward, by name; none if that is not known.

    Raises:
        AttributeError: a name that the user gives is no module's.
    """
    if hints.stages:
        return [(name, module.get_submodule(name)) for name in hints.stages]
    # A subclass may call its children in another way.
    is_plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return list(module.named_children()) if is_plain else []


def splits(module: nn.Module, hints: Hints) -> list[int]:
    """Sizes that a tensor plan cuts, which the number of devices must divide; none without a plan."""
    return [cut for _, _, _, cut in planned(module, hints)]


def planned(module: nn.Module, hints: Hints) -> list[tuple[str, nn.Module, str, int]]:
    """Modules that a plan splits: name, module, ``"colwise"`` or ``"rowwise"``, and the size of what is cut."""
    return []

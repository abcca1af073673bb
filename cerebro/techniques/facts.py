"""What can be seen of a model's modules: repeated blocks, stages, what couples rows, what a plan splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from cerebro.errors import NotApplicableError
from cerebro.spec import Hints
from cerebro.techniques.single import not_one_module


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of all of them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def coupled(module: nn.Module) -> str:
    """Name of a module whose result for a row depends on the other rows of its batch; empty if none is found."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return f"{name or 'the module itself'} ({type(part).__name__})"
    return ""


def only_trained(modules: Sequence[nn.Module]) -> nn.Module:
    """The one that has parameters.

    Raises:
        NotApplicableError: there is none, or there are several.
    """
    trained = [module for module in modules if any(True for _ in module.parameters())]
    if reason := not_one_module(len(trained)):
        raise NotApplicableError(reason)
    return trained[0]


def blocks(modules: Sequence[nn.Module], hints: Hints | None = None) -> list[nn.Module]:
    """The modules that are repeated, in their order: those of the classes that the user names or, of the classes of
    which some ``ModuleList`` or ``Sequential`` has several children, those of the class that has most parameters in
    all. None of them lies in another one."""
    kinds = hints.blocks if hints is not None and hints.blocks else _repeated(modules)
    if not kinds:
        return []
    found = {id(block): block for module in modules for block in _outermost(module, kinds)}
    return list(found.values())


def _repeated(modules: Sequence[nn.Module]) -> tuple[type, ...]:
    found: dict[type[nn.Module], dict[int, nn.Module]] = {}
    for module in modules:
        for parent in module.modules():
            if not isinstance(parent, nn.ModuleList | nn.Sequential):
                continue
            kinds = Counter(type(child) for child in parent)
            for child in parent:
                if kinds[type(child)] > 1 and any(True for _ in child.parameters()):
                    found.setdefault(type(child), {})[id(child)] = child

    def size(kind: type[nn.Module]) -> int:
        return num_bytes(distinct(one for block in found[kind].values() for one in block.parameters()))

    # The first of equals: the outermost, where a block holds nothing but a repeated one.
    return (max(found, key=size),) if found else ()


def _outermost(module: nn.Module, kinds: tuple[type, ...]) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, kinds):
            yield child
        else:
            yield from _outermost(child, kinds)


def distinct(items: Iterable[Any]) -> Iterator[Any]:
    """Each object once: parameters may be shared between modules."""
    seen: set[int] = set()
    for item in items:
        if id(item) not in seen:
            seen.add(id(item))
            yield item


def stages(module: nn.Module, hints: Hints) -> list[tuple[str, nn.Module]]:
    """Modules whose calls one after another are the model's forward, by name; none if that is not known.

    Raises:
        AttributeError: a name that the user gives is no module's.
    """
    if hints.stages:
        return [(name, module.get_submodule(name)) for name in hints.stages]
    # A subclass may call its children in another way.
    is_plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    # A module that is there twice is two stages.
    return [(name, part) for name, part in module._modules.items() if part is not None] if is_plain else []


def planned(module: nn.Module, hints: Hints) -> list[tuple[str, nn.Module, str, int]]:
    """Modules that a plan splits: name, module, ``"colwise"`` or ``"rowwise"``, and the size of what is divided.

    Raises:
        ValueError: the plan names what cannot be split, or another way to split it; says so for people.
    """
    plan = hints.tensor_plan if hints.tensor_plan is not None else getattr(module, "_tp_plan", None)
    found: list[tuple[str, nn.Module, str, int]] = []
    for pattern, how in (plan or {}).items():
        names = [name for name, _ in module.named_modules() if name and fnmatchcase(name, pattern)]
        if how not in ("colwise", "rowwise"):
            raise ValueError(f"the plan for {pattern!r} is {how!r}, expected 'colwise' or 'rowwise'")
        if not names:
            raise ValueError(f"the plan names {pattern!r}, and no module has such a name")
        for name in names:
            part = module.get_submodule(name)
            if not isinstance(part, nn.Linear | nn.Embedding):
                raise ValueError(
                    f"the plan splits {name}, a {type(part).__name__}, expected Linear or Embedding"
                )
            # A linear layer computes with its weight transposed.
            is_first = (how == "colwise") == isinstance(part, nn.Linear)
            found.append((name, part, how, int(part.weight.shape[0 if is_first else 1])))
    return found

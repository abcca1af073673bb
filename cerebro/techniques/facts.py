"""Facts about a model's modules: repeated blocks, stages, modules that couple rows, tensor plans.

Techniques call these functions in `prepare`, and `cerebro.worker.training.facts` to fill `ModelFacts`, so both see the
same blocks and stages. They only read modules. Batch normalisation is the only coupling of rows that is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from cerebro.errors import NotApplicableError
from cerebro.frozen import Frozen
from cerebro.spec import Hints
from cerebro.techniques.single import not_one_module


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the total bytes of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def coupled(module: nn.Module) -> str:
    """Return the name of a module that couples the rows of a batch, or "".

    Its result for a row depends on other rows. Frozen layers couple no rows.
    """
    frozen = {id(part) for one in module.modules() if isinstance(one, Frozen) for part in one.modules()}
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and id(part) not in frozen:
            return f"{name or 'the module itself'} ({type(part).__name__})"
    return ""


def only_trained(modules: Sequence[nn.Module]) -> nn.Module:
    """Return the only module with parameters.

    Raises:
        NotApplicableError: no module, or several modules, have parameters.
    """
    trained = [module for module in modules if any(True for _ in module.parameters())]
    if reason := not_one_module(len(trained)):
        raise NotApplicableError(reason)
    return trained[0]


def blocks(modules: Sequence[nn.Module], hints: Hints | None = None) -> list[nn.Module]:
    """Return the repeated blocks in module order; no block contains another.

    They are the modules of the classes in `hints.blocks`. Without hints, candidates are classes with several children
    in one `ModuleList` or `Sequential`; the class with the most parameters wins.
    """
    kinds = hints.blocks if hints is not None and hints.blocks else _repeated(modules)
    if not kinds:
        return []
    outermost = {id(block): block for module in modules for block in _outermost(module, kinds)}
    return list(outermost.values())


def _repeated(modules: Sequence[nn.Module]) -> tuple[type, ...]:
    repeated: dict[type[nn.Module], dict[int, nn.Module]] = {}
    for module in modules:
        for parent in module.modules():
            if not isinstance(parent, nn.ModuleList | nn.Sequential):
                continue
            kinds = Counter(type(child) for child in parent)
            for child in parent:
                if kinds[type(child)] > 1 and any(True for _ in child.parameters()):
                    repeated.setdefault(type(child), {})[id(child)] = child

    def size(kind: type[nn.Module]) -> int:
        return num_bytes(distinct(one for block in repeated[kind].values() for one in block.parameters()))

    # On a tie, `max` returns the first class: the outermost, if a block only wraps another repeated one.
    return (max(repeated, key=size),) if repeated else ()


def _outermost(module: nn.Module, kinds: tuple[type, ...]) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, kinds):
            yield child
        else:
            yield from _outermost(child, kinds)


def distinct(items: Iterable[Any]) -> Iterator[Any]:
    """Yield each object once; modules may share parameters."""
    seen_ids: set[int] = set()
    for item in items:
        if id(item) not in seen_ids:
            seen_ids.add(id(item))
            yield item


def stages(module: nn.Module, hints: Hints) -> list[tuple[str, nn.Module]]:
    """Return (name, module) pairs whose sequential calls are the model's forward; [] if unknown.

    Raises:
        AttributeError: a name in `hints.stages` is not a module.
    """
    if hints.stages:
        return [(name, module.get_submodule(name)) for name in hints.stages]
    # A subclass may call its children in another order.
    is_plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    # A module that occurs twice makes two stages.
    return [(name, part) for name, part in module._modules.items() if part is not None] if is_plain else []


def planned(module: nn.Module, hints: Hints) -> list[tuple[str, nn.Module, str, int]]:
    """Return the modules that the tensor plan splits.

    Returns:
        (name, module, `"colwise"` or `"rowwise"`, size of the divided dimension) of each module.

    Raises:
        ValueError: the plan is invalid; the message is for the user.
    """
    plan = hints.tensor_plan if hints.tensor_plan is not None else getattr(module, "_tp_plan", None)
    splits: list[tuple[str, nn.Module, str, int]] = []
    for pattern, style in (plan or {}).items():
        names = [name for name, _ in module.named_modules() if name and fnmatchcase(name, pattern)]
        if style not in ("colwise", "rowwise"):
            raise ValueError(f"the plan for {pattern!r} is {style!r}, expected 'colwise' or 'rowwise'")
        if not names:
            raise ValueError(f"the plan names {pattern!r}, but no module has this name")
        for name in names:
            part = module.get_submodule(name)
            if not isinstance(part, nn.Linear | nn.Embedding):
                raise ValueError(
                    f"the plan splits {name}, a {type(part).__name__}, expected Linear or Embedding"
                )
            # A linear layer multiplies by its transposed weight.
            is_first = (style == "colwise") == isinstance(part, nn.Linear)
            splits.append((name, part, style, int(part.weight.shape[0 if is_first else 1])))
    return splits

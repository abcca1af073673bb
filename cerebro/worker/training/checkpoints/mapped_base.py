"""Frozen weights in memory: mapped from their base, so that processes and models share the pages.

`checkpoint.read` reads a checkpoint with a base through `MappedReader`, which reads the base's tensors from a mapping
instead of copying them. `use_mapped` makes them the parameters of a new model. The mapping is private: a process
that writes into a tensor gets a copy of its pages, and other processes don't see the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from cerebro.worker.training.checkpoints.base_tensors import key_of
from cerebro.worker.training.checkpoints.verified_file import CheckedFile, CheckedReader

ALIGNMENT = 64
"""Bytes between possible starts of tensors in a base, as in torch's own memory: kernels may depend on it."""

MAPPED = "mapped"
"""Key of a loaded state whose frozen weights are mapped; never saved."""

_OTHER_ORDER = "torch reads checkpoints in another order than this version expects"


class MappedReader(CheckedReader):
    """A `CheckedReader` that leaves out tensors of the base; `replaced` returns their mapped memory.

    Attributes:
        has_mapped: True if `replaced` has returned mapped memory.
    """

    def __init__(self, checked: CheckedFile) -> None:
        super().__init__(checked)
        self.has_mapped = False
        self._ranges, self._mapping = {}, None
        self._left_out: torch.UntypedStorage | None = None
        """Mapped memory of the tensor that the latest read skipped."""
        if layout := checked.layout:
            size = max(each.at + each.size for each in layout.ranges)
            with suppress(OSError, RuntimeError):  # the volume cannot map files: read them
                self._mapping = torch.UntypedStorage.from_file(
                    str(checked.path.with_name(layout.base)), False, size
                )
                self._ranges = {each.start: each for each in layout.ranges if each.at % ALIGNMENT == 0}

    def readinto(self, into: Any) -> int:
        """Fill `into` with the file's next bytes, unless these are a tensor of the base."""
        num_bytes = memoryview(into).nbytes
        found = self._ranges.get(self._position)
        if self._left_out is not None:
            raise RuntimeError(_OTHER_ORDER)
        if self._mapping is None or found is None or found.size != num_bytes:
            return super().readinto(into)
        self._left_out = self._mapping[found.at : found.at + found.size]
        self._position += num_bytes
        return num_bytes

    def replaced(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the memory to use for the storage that torch has just read."""
        mapped, self._left_out = self._left_out, None
        if mapped is None:
            return storage
        if mapped.nbytes() != storage.nbytes():
            raise RuntimeError(_OTHER_ORDER)
        self.has_mapped = True
        return mapped


def use_mapped(modules: Sequence[torch.nn.Module], state: dict[str, Any]) -> list[Any]:
    """Make mapped tensors the parameters of new modules. Return the states for `load_state_dict`.

    In these states a parameter stands for itself, so that loading it copies nothing.
    """
    saved_states: list[Any] = state["models"]
    if not state.get(MAPPED):
        return saved_states
    names = {each.name for each in state["layout"].ranges}
    used: dict[int, tuple[Any, ...]] = {}
    owners = list(_tensors(modules))
    storages = [tensor.untyped_storage()._cdata for tensor in _held_tensors(modules)]
    for number, name, parameter in owners:
        saved = saved_states[number].get(name) if isinstance(saved_states[number], dict) else None
        if f"{number}/{name}" not in names or not isinstance(saved, torch.Tensor):
            continue
        is_alone = storages.count(parameter.untyped_storage()._cdata) == 1
        if is_alone and _fits(parameter, saved):
            parameter.data = saved
            used[id(parameter)] = key_of(saved, saved.shape)
    if not used:
        return saved_states
    return [
        _with_parameters(module, saved, used) for module, saved in zip(modules, saved_states, strict=True)
    ]


def _tensors(modules: Sequence[torch.nn.Module]) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Yield parameters and buffers once, with the number of their module and their first name."""
    visited: set[int] = set()
    for number, module in enumerate(modules):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if id(tensor) not in visited and _has_memory(tensor):
                visited.add(id(tensor))
                yield number, name, tensor


def _held_tensors(modules: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Return parameters, buffers and tensors in attributes, each once. Several may share memory."""
    found: dict[int, torch.Tensor] = {}
    for module in modules:
        for part in module.modules():
            for value in vars(part).values():
                items = value.values() if isinstance(value, dict) else value
                for item in items if isinstance(value, dict | list | tuple) else (value,):
                    if isinstance(item, torch.Tensor) and _has_memory(item):
                        found[id(item)] = item
    return list(found.values())


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and tensor.layout is torch.strided


def _fits(parameter: torch.Tensor, saved: torch.Tensor) -> bool:
    kinds = [
        (type(each.data), each.shape, each.dtype, each.device, each.layout) for each in (parameter, saved)
    ]
    return kinds[0] == kinds[1] and not parameter.requires_grad and saved.is_contiguous()


def _with_parameters(module: torch.nn.Module, saved: Any, used: dict[int, tuple[Any, ...]]) -> Any:
    if not isinstance(saved, dict):
        return saved
    replaced = saved.copy()  # keeps the versions of the module's parts
    if of_module := getattr(saved, "__dict__", None):
        replaced.__dict__.update(of_module)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        tensor = saved.get(name)
        if isinstance(tensor, torch.Tensor) and used.get(id(parameter)) == key_of(tensor, tensor.shape):
            replaced[name] = parameter
    return replaced

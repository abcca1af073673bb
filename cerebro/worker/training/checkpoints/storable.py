"""Values that a checkpoint can hold: unsuitable ones are refused by name, before anything is written.

`checkpoint.save`, `tracked_checkpoint` and `savepoints` call it for everything that user code keeps. A checkpoint is
read with ``weights_only=True``, which knows torch's types and Python's plain ones. All else would be found only when
the next sub-epoch reads the file, on another worker.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch

# Private, and pinned with torch: no public function reads the pickle of a state without its tensors.
from torch import _weights_only_unpickler as weights_only

from cerebro.errors import SpecError
from cerebro.worker.training.checkpoints.base_tensors import is_dense, key_of, with_tensors

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (bool, int, float, complex, str, bytes, bytearray)
_OF_TORCH = (torch.Size, torch.dtype, torch.device)
_LARGEST_INT_BITS = 2000
"""The reader knows integers of up to 255 bytes."""
_WORTH_COPYING = 0.9
"""Views are copied if they use less than this share of their storage's bytes."""


def allow_empty_bytes() -> None:
    """Allow ``bytes()`` when reading: a pickle writes ``b""`` as this call. Call it before each load."""
    torch.serialization.add_safe_globals([bytes])


def storable(value: object, where: str) -> Any:
    """Return a value in types that a checkpoint can hold; NumPy's scalars become Python's.

    Args:
        where: name of the value in error messages, such as ``checkpoint['x']``.

    Raises:
        SpecError: a checkpoint cannot hold the value; the message has the type, the place, and an alternative.
    """
    try:
        return _storable(value, where)
    except RecursionError:
        raise SpecError(f"{where} contains itself, or is nested too deeply to be saved") from None


def _storable(value: object, where: str) -> object:
    if isinstance(value, torch.Tensor):
        if type(value) not in _PLAIN_TENSORS and not type(value).__module__.startswith("torch."):
            _require_readable(value, where)
        return value
    if isinstance(value, np.generic) and type(value.item()) in _PLAIN:
        value = value.item()  # such as np.mean() of a list of losses
    if type(value) is int and value.bit_length() > _LARGEST_INT_BITS:
        raise SpecError(f"{where} holds an integer of {value.bit_length()} bits: keep str(number) instead")
    if value is None or type(value) in _PLAIN or type(value) in _OF_TORCH:
        return value
    if type(value) in (dict, OrderedDict, Counter):
        pairs = {
            _storable(key, f"a key of {where}"): _storable(item, f"{where}[{key!r}]")
            for key, item in cast("dict[object, object]", value).items()
        }
        if type(value) is dict:
            return pairs
        kind: Any = type(value)
        copy = kind(pairs)
        copy.__dict__.update(value.__dict__)  # of a module's state: versions of its parts
        return copy
    if type(value) in (list, tuple, set):
        items = [_storable(item, f"{where}[{n}]") for n, item in enumerate(cast("list[object]", value))]
        copied: Any = type(value)
        return copied(items)
    raise SpecError(
        f"{where} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved between "
        f"sub-epochs: {_remedy(value)}"
    )


_REMEDIES: tuple[tuple[type, str], ...] = (
    (np.ndarray, "keep torch.from_numpy(array), or array.tolist()"),
    (np.generic, "keep its .item(), or a tensor"),
    (enum.Enum, "keep its .value, and make the member from that again"),
    ((datetime.datetime), "keep its .isoformat()"),
    ((datetime.date), "keep its .isoformat()"),
    ((datetime.timedelta), "keep its .total_seconds()"),
    (os.PathLike, "keep str(path)"),
    (Mapping, "keep dict(value)"),
    (tuple, "keep tuple(value)"),
    (frozenset, "keep set(value)"),
    (torch.optim.Optimizer, "call checkpoint.track(optimizer=optimizer), or keep optimizer.state_dict()"),
)


def _remedy(value: object) -> str:
    if dataclasses.is_dataclass(value):
        return "keep dataclasses.asdict(value)"
    for kind, found in _REMEDIES:
        if isinstance(value, kind):
            return found
    if hasattr(value, "state_dict"):
        return "call checkpoint.track(name=value), or keep its state_dict()"
    return (
        "keep tensors, numbers, strings and dicts, lists, tuples or sets of them. An object with state_dict() and "
        "load_state_dict() can be tracked: checkpoint.track(name=value)"
    )


def storable_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return a model's state as a file can hold it. Tensors are shared with the state given.

    Raises:
        SpecError: a checkpoint cannot hold a value in `checkpoint`, or the extra state of a module.
    """
    for number, saved in enumerate(state["models"]):
        for key, value in saved.items() if isinstance(saved, Mapping) else ():
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                _require_readable(
                    value, f"the state_dict() of module {number} of create_models(), at {key!r},"
                )
    return _without_unseen({**state, "checkpoint": storable(state["checkpoint"], "checkpoint")})


def _require_readable(value: object, where: str) -> None:
    """Read the pickle of a value back, as the next sub-epoch will; its tensors are neither written nor copied.

    Raises:
        SpecError: it cannot be written or read.
    """
    storages: list[object] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: object) -> int | None:
            if not isinstance(item, torch.UntypedStorage | torch.storage.TypedStorage):
                return None
            storages.append(item)
            return len(storages) - 1

    file = io.BytesIO()
    try:
        Pickler(file, protocol=2).dump(value)
        file.seek(0)
        allow_empty_bytes()
        reader: Any = weights_only.Unpickler(file, encoding="utf-8")
        reader.persistent_load = storages.__getitem__
        reader.load()
    except Exception as error:
        if not isinstance(value, torch.Tensor):
            storable(value, where)  # has the better message, if it refuses the value too
        raise SpecError(
            f"{where} holds a {type(value).__module__}.{type(value).__qualname__} that a checkpoint cannot hold: "
            "return tensors, numbers, strings and dicts, lists or tuples of them from get_extra_state(). "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error


# --- views ---------------------------------------------------------------------------------------------


def _without_unseen(state: dict[str, Any]) -> dict[str, Any]:
    """Copy small views of large storages, because torch writes the whole storage of a view.

    Tensors that overlap still share memory afterwards.
    """
    by_storage: dict[int, dict[tuple[Any, ...], torch.Tensor]] = {}
    for tensor in tensors(state):
        if is_dense(tensor) and tensor.device.type != "meta":
            views = by_storage.setdefault(tensor.untyped_storage()._cdata, {})
            views[key_of(tensor, tensor.shape)] = tensor
    small: dict[tuple[Any, ...], torch.Tensor] = {}
    for views in by_storage.values():
        clusters = list(_clusters(views))
        held = next(iter(views.values())).untyped_storage().nbytes()
        if sum(cluster.num_bytes for cluster in clusters) < _WORTH_COPYING * held:
            for cluster in clusters:
                small |= cluster.copied()
    if not small:
        return state

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        return small.get(key_of(tensor, tensor.shape), tensor) if is_dense(tensor) else tensor

    return cast("dict[str, Any]", with_tensors(state, replaced))


@dataclasses.dataclass
class _Cluster:
    """Views whose memory overlaps, within bytes `start` to `stop` of their storage."""

    views: dict[tuple[Any, ...], torch.Tensor]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes that a copy takes."""
        return self.stop - self.start if self._keeps_layout else next(iter(self.views.values())).nbytes

    @property
    def _keeps_layout(self) -> bool:
        (first, *other_views) = self.views.values()
        return bool(other_views) or self.stop - self.start <= first.nbytes

    def copied(self) -> dict[tuple[Any, ...], torch.Tensor]:
        """Copy the views to new memory; keys are the originals' keys."""
        if not self._keeps_layout:
            return {
                key: view.detach().clone().requires_grad_(view.requires_grad)
                for key, view in self.views.items()
            }
        (first, *_) = self.views.values()
        source = torch.empty(0, dtype=torch.uint8, device=first.device)
        source.set_(first.untyped_storage(), self.start, (self.stop - self.start,), (1,))
        storage = source.clone().untyped_storage()
        copies = {}
        for key, view in self.views.items():
            offset = view.storage_offset() - self.start // view.element_size()
            copy = torch.empty(0, dtype=view.dtype, device=view.device)
            copy.set_(storage, offset, view.shape, view.stride())
            copies[key] = copy.requires_grad_(view.requires_grad)
        return copies


def _clusters(views: Mapping[tuple[Any, ...], torch.Tensor]) -> Iterator[_Cluster]:
    """Group the views of one storage by overlap."""
    found: _Cluster | None = None
    spans = sorted(((*_span(view), key) for key, view in views.items()), key=lambda each: each[:2])
    for start, stop, key in spans:
        if found is not None and start < found.stop:
            found.views[key] = views[key]
            found.stop = max(found.stop, stop)
            continue
        if found is not None:
            yield found
        found = _Cluster({key: views[key]}, start, stop)
    if found is not None:
        yield found


_ALIGNMENT = 16
"""Bytes; a multiple of the size of each dtype."""


def _span(view: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a view in its storage, aligned, and the byte after its last one."""
    start = int(view.storage_offset()) * view.element_size()
    if not view.numel():
        return start - start % _ALIGNMENT, start - start % _ALIGNMENT
    last = sum((size - 1) * int(stride) for size, stride in zip(view.shape, view.stride(), strict=True))
    return start - start % _ALIGNMENT, start + (last + 1) * view.element_size()


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def state_bytes(state: Mapping[str, Any]) -> int:
    """Return the bytes of all tensors of a state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))

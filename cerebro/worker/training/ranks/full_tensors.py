"""Assemble a rank group's state: join the parts of tensors and require everything else to be equal.

`checkpoints.joint_write` and `GroupTrainee` call `gather_full` on all ranks; the result is on rank 0's host. A
checkpoint does not depend on the number of ranks. So everything except parts of tensors must be the same on every rank.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.tensor import DTensor, Shard

from cerebro.errors import RanksDifferError
from cerebro.techniques.base import Group

_NAMED = 3


def joined(part: DTensor, group: Group) -> torch.Tensor | None:
    """Return the full tensor on rank 0's host, and `None` on other ranks. Collective."""
    local = part.to_local().detach()
    if group.size > 1 and local.device.type == "cpu" and part.placements == (Shard(0),):
        # Received in place: no rank needs memory for more than its own part.
        if group.rank > 0:
            if local.numel():
                dist.send(local.contiguous(), dst=0)
            return None
        full = torch.empty(part.shape, dtype=part.dtype, device="cpu")
        first, *other_parts = full.chunk(group.size)
        first.copy_(local)
        for rank, rows in enumerate(other_parts, 1):
            if rows.numel():
                dist.recv(rows, src=rank)
        return full
    tensor: torch.Tensor = part.full_tensor().detach()
    if group.rank > 0:
        return None
    # Uneven rows were padded, and torch saves a tensor's entire storage.
    is_padded = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return (tensor.clone() if is_padded else tensor).cpu()


def gather_full(
    state: Any,
    group: Group,
    name: str = "",
    join: Callable[[DTensor, Group], torch.Tensor | None] = joined,
) -> Any:
    """Convert a tree's DTensors to full tensors. Collective.

    Rank 0 needs additional host memory for the full tensors. Parts on GPUs need device memory for one full
    tensor at a time.

    Args:
        name: name of the tree, for people.
        join: creates a full tensor from a part; called on all ranks in the same order.

    Returns:
        On rank 0 the tree. On other ranks `None`.

    Raises:
        RanksDifferError: ranks differ in another value; on all ranks.
    """
    leaves = dict(_leaves(state, name))
    parts: dict[str, DTensor] = {path: value for path, value in leaves.items() if isinstance(value, DTensor)}
    first = _first_names(parts)
    if group.size > 1:
        marks = {path: _mark(value) for path, value in leaves.items()}
        _require_equal(marks | {f"{path} is": name for path, name in first.items()}, group)
    full: dict[str, torch.Tensor] = {}
    for path in sorted(parts):  # in the same order on all ranks
        if first[path] == path:
            tensor = join(parts[path], group)
            if tensor is not None:
                full[path] = tensor
    if group.rank == 0:
        full |= {path: full[name].detach() for path, name in first.items() if path != name}
    if group.rank > 0:
        return None
    return _with(state, full, name) if full else state


def require_same(state: Any, group: Group) -> None:
    """Raise RanksDifferError, on all ranks, unless all have the same tree, to the bit. Collective."""
    if group.size > 1:
        _require_equal({path: _mark(value) for path, value in _leaves(state, "")}, group)


def _first_names(parts: Mapping[str, DTensor]) -> dict[str, str]:
    """Map each tensor's name to the first name of the same memory: shared weights are in a file once."""
    found: dict[tuple[Any, ...], str] = {}
    names = {}
    for path in sorted(parts):
        local = parts[path].to_local()
        # By storage and not by address, because an empty part has a storage, too.
        place = local.untyped_storage()._cdata, local.storage_offset(), tuple(parts[path].shape)
        names[path] = found.setdefault(place, path)
    return names


def _require_equal(marks: Mapping[str, str], group: Group) -> None:
    """Raise RanksDifferError unless all ranks have the same marks. Compares a digest first: marks are many."""
    digest = xxhash.xxh3_128_hexdigest("\0".join(f"{path}\0{marks[path]}" for path in sorted(marks)).encode())
    if len(set(group.gathered(digest))) == 1:
        return
    found = group.gathered(dict(marks))
    for rank, other in enumerate(found):
        names = [path for path in {**found[0], **other} if found[0].get(path) != other.get(path)]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            first = names[0]
            raise RanksDifferError(
                f"ranks 0 and {rank} differ in {', '.join(names[:_NAMED])}{more}: rank 0 has "
                f"{found[0].get(first, 'nothing')}, rank {rank} {other.get(first, 'nothing')}. A model on several "
                "devices has one state: keep there only what does not depend on the rows that a rank read"
            )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def _mark(value: Any) -> str:
    """Return a text that is equal for bitwise equal values."""
    if isinstance(value, DTensor):
        return f"a part of a tensor of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, torch.Tensor):
        content = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        digest = xxhash.xxh3_64_hexdigest(content.data)
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}, digest {digest}"
    plain = isinstance(value, (bool, int, float, complex, str, bytes)) or value is None
    return repr(value) if plain else f"a {type(value).__qualname__}"


def _with(value: Any, full: Mapping[str, torch.Tensor], path: str) -> Any:
    if type(value) in (dict, OrderedDict):
        copy = type(value)((key, _with(item, full, f"{path}[{key!r}]")) for key, item in value.items())
        if of_module := getattr(value, "__dict__", None):
            copy.__dict__.update(of_module)  # of a module's state: versions of its parts
        return copy
    if type(value) in (list, tuple):
        return type(value)(_with(item, full, f"{path}[{number}]") for number, item in enumerate(value))
    return full.get(path, value)

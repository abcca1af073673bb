"""Frozen weights: stored once in a *base* (frozen-weights file) that later checkpoints reference.

`Trainee.save` calls `move_to_base` before it writes a checkpoint, on all ranks. A base is written only for at least 16
MiB of frozen weights.

A parameter that needs no gradient when its state is saved is assumed to be frozen. Each save compares its bytes with
the base and writes changed parameters with the checkpoint. So a wrong assumption costs only time.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from xxhash import xxh3_64, xxh3_64_intdigest

from cerebro.data.files.base_file import LONGEST_NAME, MAX_RANGES, Layout, base_namer, base_written, is_base
from cerebro.data.files.durable import DurableFile, Written, checksum
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.worker.training.checkpoints.base_tensors import BaseTensor, BaseTensors, key_of
from cerebro.worker.training.checkpoints.mapped_base import ALIGNMENT
from cerebro.worker.training.checkpoints.rows import content, done_by_all, write_at

LEAST_BYTES = 16 << 20
"""Minimum bytes of frozen weights for a base. With fewer, a checkpoint is one file."""

_LEAST_TENSOR, _LEAST_ROW = 64 << 10, 256
"""Minimum bytes of a tensor in a base, and of one of its rows: rows are compared one by one."""

_WORD = (1 << 64) - 1


@dataclass(kw_only=True)
class FrozenWeights:
    """A model's frozen weights.

    Attributes:
        is_wanted: True if checkpoints may store them in a separate file.
        layout: layout of the restored file if it has a base.
    """

    is_wanted: bool = False
    layout: Layout | None = None


class Holder(Protocol):
    """Holder of a model or of one rank's part: a `Trainee`."""

    modules: list[torch.nn.Module]
    frozen: FrozenWeights

    @property
    def rank(self) -> int:
        """Rank of this process."""

    def of_ranks(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""

    def rows_here(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int] | None:
        """Return this rank's rows of a tensor and the first row's number; `None` if not rows."""


def move_to_base(
    holder: Holder, root: Path, name: str, state: Mapping[str, Any], *, makes_base: bool
) -> BaseTensors | None:
    """Store a state's frozen weights in a base, and return them; `None` if there are no such weights. Collective.

    Args:
        root, name: root of the checkpoints, and the checkpoint's name below it, in its model's folder.
        state: this rank's part.
        makes_base: True if a base may be written for weights outside the current one.

    Raises:
        StorageFullError, OSError: a base cannot be written: on all ranks.
    """
    path, known = root / name, holder.frozen.layout
    if not holder.frozen.is_wanted:
        return None
    found = {weight.name: weight for weight in _candidates(holder, state)}
    if not makes_base:
        found = {name: weight for name, weight in found.items() if known and name in _names(known)}
    if sum(weight.size for weight in found.values()) < LEAST_BYTES:
        found = {}
    reports = holder.of_ranks(
        (
            {name: (digest(weight.rows, weight.first), weight.is_whole) for name, weight in found.items()},
            known is not None and _is_there(path.with_name(known.base)),
        )
    )
    if not reports[0][1]:
        known = None
    agreed = [
        weight for name, weight in found.items() if _agree(weight, [ranks.get(name) for ranks, _ in reports])
    ]
    ranges = {} if known is None else {each.name: each for each in known.ranges}
    unchanged, changing = [], set(() if known is None else known.changing)
    for weight in agreed:
        if (there := ranges.get(weight.name)) is None:
            continue
        if (there.digest, there.size) == (weight.digest, weight.size):
            weight.at = there.at
            unchanged.append(weight)
        else:
            changing.add(weight.name)
    fresh = [weight for weight in agreed if weight.name not in ranges and weight.name not in changing]
    no_longer = tuple(sorted(changing))
    if makes_base and sum(weight.size for weight in fresh) >= LEAST_BYTES:
        frozen_names = {weight.name for weight in (*unchanged, *fresh)}
        weights = [weight for weight in agreed if weight.name in frozen_names]
        base = _write_base(holder, path, weights, () if path.parent == root else (path.parent.parent,))
        written = path.with_name(base) if holder.rank == 0 else None
        return BaseTensors(weights, base, no_longer, is_new=True, path=written)
    if known is None or sum(weight.size for weight in unchanged) < LEAST_BYTES:
        return None
    return BaseTensors(unchanged, known.base, no_longer)


def _candidates(holder: Holder, state: Mapping[str, Any]) -> Iterator[BaseTensor]:
    """Yield unique, large, contiguous parameters without gradients, up to a layout's maximum with changed ones."""
    changing = set(holder.frozen.layout.changing) if holder.frozen.layout else set()
    visited: set[tuple[Any, ...]] = set()
    for number, (module, saved) in enumerate(zip(holder.modules, state["models"], strict=True)):
        if type(saved) not in (dict, OrderedDict):
            continue
        for name, parameter in module.named_parameters():
            tensor, full = saved.get(name), f"{number}/{name}"
            if parameter.requires_grad or full in changing or not isinstance(tensor, torch.Tensor):
                continue
            if len(visited) + len(changing) >= MAX_RANGES or len(json.dumps(full)) > LONGEST_NAME:
                continue
            size = tensor.numel() * tensor.element_size()
            if tensor.dim() < 2 or size < max(_LEAST_TENSOR, _LEAST_ROW * tensor.shape[0]):
                continue
            part = holder.rows_here(tensor)
            if part is None or (key := key_of(part[0], tensor.shape)) in visited:
                continue
            visited.add(key)
            yield BaseTensor(name=full, shape=tensor.shape, rows=part[0], first=part[1], size=size)


def digest(rows: torch.Tensor, first: int) -> int:
    """Return a digest of rows starting at `first`. Digests of a tensor's parts add up to its digest."""
    if not rows.numel():
        return 0
    flat = content(rows)
    width = len(flat) // rows.shape[0]
    return (
        sum(
            xxh3_64_intdigest(flat[row * width : (row + 1) * width], seed=first + row)
            for row in range(rows.shape[0])
        )
        & _WORD
    )


def _agree(weight: BaseTensor, reports: list[tuple[int, bool] | None]) -> bool:
    """Store a tensor's digest. Return False if ranks lack it or differ."""
    known = [each for each in reports if each is not None]
    if len(known) < len(reports):
        return False
    digests = [one for one, _ in known]
    if all(is_whole for _, is_whole in known):
        weight.digest = digests[0]
        return len(set(digests)) == 1
    weight.digest = sum(digests) & _WORD
    return True


def _write_base(holder: Holder, path: Path, weights: Sequence[BaseTensor], runs: Sequence[Path]) -> str:
    """Link another model's base with the same content, or write one, each rank its rows. Collective.

    Args:
        runs: folders whose subfolders are models that may have it.

    Returns:
        The base's name.
    """
    size = 0
    for weight in weights:
        weight.at = -(-size // ALIGNMENT) * ALIGNMENT
        size = weight.at + weight.size
    if linked := holder.of_ranks(_link(path, weights, size, runs) if holder.rank == 0 else "")[0]:
        return str(linked)
    named = base_namer()
    file: DurableFile | None = None
    aside = ""

    def create() -> str:
        nonlocal file
        if holder.rank > 0:
            return ""
        file = DurableFile(path.with_name(f"{path.name.removesuffix('.pt')}.frozen"), makes_folder=False)
        file.leave(size)
        file.flush()
        return str(file.aside)

    def fill() -> None:
        own_weights = [weight for weight in weights if holder.rank == 0 or not weight.is_whole]
        if not own_weights:
            return  # this rank may be on another machine, where a new file becomes visible late
        with volume_errors_named(path.parent), Path(aside).open("r+b", buffering=0) as opened:
            for weight in own_weights:
                write_at(
                    opened.fileno(), weight.rows, weight.at + weight.first * (weight.size // weight.shape[0])
                )

    def commit() -> str:
        return "" if file is None else named(file.commit(named=named))

    try:
        aside = done_by_all(create, holder.of_ranks)[0]
        done_by_all(fill, holder.of_ranks)
        return done_by_all(commit, holder.of_ranks)[0]
    finally:
        if file is not None:
            file.discard()


def _link(path: Path, weights: Sequence[BaseTensor], size: int, runs: Sequence[Path]) -> str:
    """Link a base of another model with the same content. Return the new name, or "" without one."""
    candidates = [
        other
        for run in runs
        for other in run.glob("*/frozen-*")
        if is_base(other.name) and base_written(other.name).num_bytes == size
    ]
    if not candidates or not all(weight.is_whole for weight in weights):
        return ""
    digest, position = xxh3_64(), 0
    for weight in weights:
        digest.update(bytes(weight.at - position))
        digest.update(weight.content)
        position = weight.at + weight.size
    written = Written(num_bytes=size, checksum=f"xxh3_64:{digest.hexdigest()}")
    for other in candidates:
        # Any error is harmless: the other model may have been deleted, or the volume may know no links.
        with suppress(OSError):
            if base_written(other.name) == written and checksum(other) == written:
                name = base_namer()(written)
                path.with_name(name).hardlink_to(other)
                return name
    return ""


def _is_there(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size == base_written(path.name).num_bytes
    return False


def _names(layout: Layout) -> set[str]:
    return {each.name for each in layout.ranges}

"""Tensors of a model that are in a base (a frozen-weights file), and how a state is written without them.

`frozen.move_to_base` creates `BaseTensors`; `checkpoint.save` and `joint_write` write placeholders in place of its
tensors. No file is written here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cerebro.worker.training.checkpoints.rows import content


@dataclass(kw_only=True)
class BaseTensor:
    """A tensor in the base.

    Attributes:
        rows, first: this rank's rows, and the first row's number.
        size, at: bytes of the entire tensor, and its offset in the base.
        digest: digest of its bytes; independent of the number of ranks.
        placeholder: untouched memory that replaces the tensor in the written state.
    """

    name: str
    shape: torch.Size
    rows: torch.Tensor
    first: int
    size: int
    digest: int = 0
    at: int = 0
    placeholder: torch.Tensor | None = None

    @property
    def is_whole(self) -> bool:
        """True if this rank has the entire tensor."""
        return self.rows.shape == self.shape

    @property
    def content(self) -> memoryview:
        """The tensor's bytes, if this rank has the entire tensor."""
        return content(self.rows)

    def make_placeholder(self) -> torch.Tensor:
        """Return its placeholder; always the same."""
        if self.placeholder is None:
            self.placeholder = torch.empty(self.shape, dtype=self.rows.dtype, device="cpu")
        return self.placeholder


class BaseTensors:
    """Frozen weights that a file stores in a base.

    Attributes:
        base: the base's name.
        changing: names of weights that have changed.
        is_new: True if the base was created for this file.
    """

    def __init__(
        self,
        weights: Sequence[BaseTensor],
        base: str,
        changing: tuple[str, ...],
        *,
        is_new: bool = False,
        path: Path | None = None,
    ) -> None:
        self.base, self.changing, self.is_new, self._path = base, changing, is_new, path
        self._weights = {key_of(weight.rows, weight.shape): weight for weight in weights}
        self._by_storage = {
            weight.rows.untyped_storage()._cdata: weight for weight in weights if weight.is_whole
        }

    def __iter__(self) -> Iterator[BaseTensor]:
        return iter(self._weights.values())

    @property
    def num_bytes(self) -> int:
        """Total bytes of all tensors."""
        return sum(weight.size for weight in self)

    def placeholder_of(self, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """Return the placeholder of the tensor with these rows; `None` if not in the base."""
        weight = self._weights.get(key_of(rows, shape))
        return None if weight is None else weight.make_placeholder()

    def with_placeholders(self, state: dict[str, Any]) -> dict[str, Any]:
        """Replace the base's tensors in a state, and views of the base's tensors, by placeholders."""
        found: dict[str, Any] = with_tensors(state, self._placeholder_for)
        return found

    def _placeholder_for(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_dense(tensor):
            return tensor
        weight = self._by_storage.get(tensor.untyped_storage()._cdata)
        if weight is None or tensor.dtype != weight.rows.dtype:
            return tensor
        return weight.make_placeholder().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def discard(self) -> None:
        """Remove the base if it was created for a file that could not be written."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def with_tensors(value: Any, replaced: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a tree of dicts, lists and tuples with each tensor replaced. Other values stay the same."""
    if isinstance(value, torch.Tensor):
        return replaced(value)
    if type(value) in (dict, OrderedDict):
        copy = type(value)((key, with_tensors(item, replaced)) for key, item in value.items())
        if of_module := getattr(value, "__dict__", None):
            copy.__dict__.update(of_module)  # of a module's state: versions of its parts
        return copy
    if type(value) in (list, tuple):
        return type(value)(with_tensors(item, replaced) for item in value)
    return value


def is_plain(tensor: torch.Tensor) -> bool:
    """True if the tensor's bytes equal its storage, as in a file."""
    if not is_dense(tensor) or not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def is_dense(tensor: torch.Tensor) -> bool:
    """True if it is a plain strided tensor whose storage holds the values themselves, without a conj or neg bit."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return not tensor.is_conj() and not tensor.is_neg()


def key_of(rows: torch.Tensor, shape: torch.Size) -> tuple[Any, ...]:
    """Return a key that is equal for equal views of the same memory."""
    # By storage and not by address, because an empty part has a storage, too.
    return rows.untyped_storage()._cdata, rows.storage_offset(), rows.stride(), tuple(shape), rows.dtype

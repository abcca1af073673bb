"""Compute the outputs of frozen layers for all rows of a partition, and look them up by row.

Rows are computed in stored order with a fixed number of rows per call, so the bits depend on the partition and the
layers only: a stored output and a new computation are equal. `FrozenLayers` decides when, `OutputCache` where to store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from cerebro.data.loader import PartitionLoader, as_columns
from cerebro.data.mapped import MappedPartition, MappedRows
from cerebro.data.trees import map_leaves, rebuild
from cerebro.errors import SpecError
from cerebro.frozen import Frozen
from cerebro.ragged_rows import Ragged
from cerebro.usercode.fingerprint import fingerprint
from cerebro.worker.training.checkpoints.rows import content

_BFLOAT16 = "torch.bfloat16"
"""Key that marks a stored tensor of this dtype, which NumPy lacks."""
_TOLERANCE = 2.0
"""Accepted difference of a row computed alone, as a multiple of the square root of the dtype's resolution.

Rounding stays far below it, and another row's influence is far above.
"""


@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """A call of frozen layers with inputs of a batch.

    Attributes:
        node: tree of field names, nested as the argument.
        device: device of the argument.
    """

    frozen: Frozen
    node: Any
    device: torch.device

    def digest(self, hashes: Mapping[torch.Tensor, str]) -> str:
        """Return a hash of everything besides the rows that decides the bits of the outputs.

        Args:
            hashes: hashes of the weights.

        Raises:
            UnknownStateError: the layers have an attribute whose state cannot be read.
        """
        frozen, device = self.frozen, self.device

        def known_hash(tensor: torch.Tensor) -> str:
            return hashes.get(tensor) or tensor_hash(tensor)

        facts = {
            "layers": fingerprint((frozen.module, frozen.prepare), known_hash, is_complete=True),
            "node": repr(self.node),
            "options": [frozen.batch_rows, str(frozen.dtype)],
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
            "precision": [*autocast_of(device), torch.get_float32_matmul_precision()],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def computed(
        self, loader: PartitionLoader, partition: MappedPartition, on_chunk: Callable[[], None]
    ) -> Iterator[Any]:
        """Yield the outputs of a partition's rows in stored order, as trees of tensors on the host.

        Args:
            on_chunk: called before each call of the layers.

        Raises:
            SpecError: the layers return no rows, or a row's output depends on other rows.
        """
        names: list[str] = []
        map_leaves(names.append, self.node)
        for first in range(partition.first, partition.first + partition.rows, self.frozen.batch_rows):
            on_chunk()
            last = min(first + self.frozen.batch_rows, partition.first + partition.rows)

            def outputs(rows: NDArray[np.int64]) -> Any:
                columns = loader.columns(rows, names, self.device)
                found = self.frozen.compute(map_leaves(columns.__getitem__, self.node))
                return map_leaves(lambda leaf: self._checked(leaf, len(rows)).cpu(), found)

            chunk = outputs(np.arange(first, last))
            if first == partition.first and last - first > 1:
                for row in (first, last - 1):
                    self._require_independent(chunk, outputs(np.arange(row, row + 1)), row - first)
            yield chunk

    def _checked(self, leaf: torch.Tensor, rows: int) -> torch.Tensor:
        if leaf.dim() == 0 or len(leaf) != rows:
            raise SpecError(
                f"{self.frozen.label} returned a tensor of shape {tuple(leaf.shape)} for {rows} rows: return one entry "
                "per row, on the first axis"
            )
        return leaf.detach()

    def _require_independent(self, chunk: Any, alone: Any, row: int) -> None:
        together: list[torch.Tensor] = []
        single: list[torch.Tensor] = []
        map_leaves(together.append, chunk)
        map_leaves(single.append, alone)
        for expected, found in zip(together, single, strict=True):
            if not _is_close(expected[row : row + 1], found, expected, self._resolution(found)):
                raise SpecError(
                    f"the output of {self.frozen.label} depends on the batch: a row alone gives another output than "
                    "among other rows, or each call gives another one. Return outputs of fixed size, computed from "
                    "each row alone and without random numbers, or do not wrap these layers in cerebro.Frozen"
                )

    def _resolution(self, found: torch.Tensor) -> float:
        """Return the smallest relative difference that the computation resolves."""
        if not found.is_floating_point():
            return 0.0
        dtypes = [found.dtype, self.frozen.dtype or found.dtype]
        if autocast_of(self.device)[0]:
            dtypes.append(torch.get_autocast_dtype(self.device.type))
        if self.device.type == "cuda":
            dtypes.append(torch.float16)  # as precise as TF32
        return max(torch.finfo(dtype).eps for dtype in dtypes)


def tensor_hash(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's bytes."""
    plain = tensor.detach().cpu()
    if plain.layout is not torch.strided or plain.is_quantized:
        return repr(plain)
    return xxhash.xxh3_128_hexdigest(content(plain))


def autocast_of(device: torch.device) -> tuple[bool, str]:
    """Return whether autocast is on for a device, and its dtype."""
    is_on = torch.is_autocast_enabled(device.type)
    return is_on, str(torch.get_autocast_dtype(device.type)) if is_on else ""


def _processor() -> str:
    # Another number of threads divides sums in another way.
    return f"cpu {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"


def _is_close(expected: torch.Tensor, found: torch.Tensor, outputs: torch.Tensor, resolution: float) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not found.is_floating_point():
        return torch.equal(found, expected)
    scale = float(outputs.double().abs().nan_to_num(posinf=0.0).max()) if outputs.numel() else 0.0
    limit = scale * _TOLERANCE * resolution**0.5
    return torch.allclose(found.double(), expected.double(), rtol=0.0, atol=limit, equal_nan=True)


# --- trees of arrays -----------------------------------------------------------------------------


def to_arrays(outputs: Any) -> Any:
    """Return a tree of tensors as a tree of arrays that a shard can store."""

    def array(leaf: torch.Tensor) -> Any:
        contiguous = leaf.contiguous()
        if leaf.dtype is torch.bfloat16:
            return {_BFLOAT16: contiguous.view(torch.int16).numpy()}
        return contiguous.numpy()

    return map_leaves(array, outputs)


def to_tensors(arrays: Any) -> Any:
    """Return the tree of tensors that `to_arrays` converted; leaves are tensors already."""
    if type(arrays) is dict:
        if arrays.keys() == {_BFLOAT16}:
            return arrays[_BFLOAT16].view(torch.bfloat16)
        return {key: to_tensors(item) for key, item in arrays.items()}
    if type(arrays) is tuple:
        return tuple(map(to_tensors, arrays))
    return arrays


def num_bytes(outputs: Any) -> int:
    """Return the bytes of a tree of tensors."""
    sizes: list[int] = []
    map_leaves(lambda leaf: sizes.append(leaf.nbytes), outputs)
    return sum(sizes)


class StoredOutputs:
    """Outputs in files, one folder per partition in the format of shards."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._rows = MappedRows.open(folders)

    def take(self, rows: NDArray[np.int64], device: torch.device) -> Any:
        """Return the outputs of rows, by position over all partitions."""
        assert self._rows.layout is not None
        (planned,) = self._rows.planned(rows, np.array([0, len(rows)]))
        columns = as_columns(self._rows.fields, planned.columns())
        tree = rebuild(self._rows.layout.structure["input"], columns)
        return map_leaves(lambda leaf: leaf.to(device, non_blocking=True), to_tensors(tree))


class HeldOutputs:
    """Outputs in memory.

    Args:
        chunks: outputs of consecutive rows, at least one chunk.
    """

    def __init__(self, chunks: Sequence[Any]) -> None:
        self._tensors = _concatenated(chunks)

    def take(self, rows: NDArray[np.int64], device: torch.device) -> Any:
        """Return the outputs of rows, by position over all partitions."""
        index = torch.from_numpy(rows)
        return map_leaves(lambda leaf: leaf[index].to(device, non_blocking=True), self._tensors)


def _concatenated(chunks: Sequence[Any]) -> Any:
    first = chunks[0]
    if isinstance(first, dict):
        return {key: _concatenated([chunk[key] for chunk in chunks]) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenated([chunk[n] for chunk in chunks]) for n in range(len(first)))
    return torch.cat(list(chunks))


def leaf_version(leaf: Any) -> object:
    """Return a mark of a batch's tensor that changes with its content; `None` if changes are invisible.

    On a CPU the mark contains a hash of the bytes, because a write through ``.data`` or a NumPy view leaves the version
    counter unchanged. On a GPU only the counter shows changes, which tensors of `torch.inference_mode` lack.
    """
    tensors = (leaf.values, leaf.offsets) if isinstance(leaf, Ragged) else (leaf,)
    if any(tensor.is_inference() and not tensor.is_cpu for tensor in tensors):
        return None
    return [(tensor_version(tensor), tensor_hash(tensor) if tensor.is_cpu else "") for tensor in tensors]


def tensor_version(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a mark that changes with a tensor's memory, and with its content if torch counts the change."""
    return -1 if tensor.is_inference() else tensor._version, tensor.data_ptr()

"""Outputs of frozen layers during a sub-epoch or an evaluation.

`InstrumentedLoader` reports each batch to a `FrozenLayers`; `sub_epoch` binds it to the model's `cerebro.Frozen`
modules. A call with unchanged inputs of a batch gets the rows' outputs from files or memory; any other call computes.
Outputs are equal to the bit with and without files.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from cerebro.data.loader import Batch, PartitionLoader
from cerebro.data.mapped import MappedPartition
from cerebro.data.trees import first_leaf, map_leaves
from cerebro.errors import CerebroError, SpecError
from cerebro.frozen import Frozen
from cerebro.ragged_rows import Ragged
from cerebro.runtime.usage import memory
from cerebro.usercode.fingerprint import UnknownStateError
from cerebro.worker.training.frozen_layers.output_cache import OutputCache
from cerebro.worker.training.frozen_layers.outputs import (
    HeldOutputs,
    LayerCall,
    StoredOutputs,
    autocast_of,
    leaf_version,
    num_bytes,
    tensor_hash,
    tensor_version,
)
from cerebro.worker.training.seeds import generator_states, restore_generator_states

log = logging.getLogger(__name__)

_MEMORY_SHARE = 0.25
"""Fraction of the memory that outputs may take if they are not stored."""


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """A tensor of a batch: its field, the rows, and a mark of its content."""

    reference: weakref.ref[Any]
    name: str
    rows: NDArray[np.int64]
    version: object


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """Outputs for one call; `outputs` is `None` if the layers compute each call."""

    outputs: StoredOutputs | HeldOutputs | None
    frozen: Frozen
    settings: Sequence[object]
    hashes: Mapping[torch.Tensor, str]
    """Hashes of the weights."""
    versions: Sequence[object]

    def is_current(self) -> bool:
        """True if settings, memory and version counters of the layers are unchanged."""
        return (
            all(one is other for one, other in zip(_settings(self.frozen), self.settings, strict=True))
            and [tensor_version(each) for each in self.hashes] == self.versions
        )

    def require_unchanged(self) -> None:
        """Raise `SpecError` if the weights changed without notice, so later outputs did not fit them."""
        if self.outputs is None or not self.is_current():
            return
        if _weight_hashes(self.frozen) != self.hashes:
            raise SpecError(
                f"the weights of {self.frozen.label} were replaced, or changed through .data or a NumPy view, while "
                "its stored outputs were in use. Do not wrap layers that change in cerebro.Frozen, or change their "
                "parameters in place under torch.no_grad(), without .data"
            )


def _settings(frozen: Frozen) -> tuple[object, ...]:
    return frozen.module, frozen.prepare, frozen.dtype


def _weights(frozen: Frozen) -> Iterator[torch.Tensor]:
    yield from frozen.module.parameters()
    yield from frozen.module.buffers()


def _weight_hashes(frozen: Frozen) -> dict[torch.Tensor, str]:
    return {tensor: tensor_hash(tensor) for tensor in _weights(frozen)}


def _is_sharded(frozen: Frozen) -> bool:
    return any(isinstance(tensor, DTensor) for tensor in _weights(frozen))


class FrozenLayers:
    """Outputs of frozen layers for the batches of one loader. For one thread.

    Args:
        loader: the loader of the rows.
        cache: stores outputs; `None` keeps them in memory.
        on_chunk: called between parts of a computation, and while another process computes; may raise.

    Attributes:
        warnings: texts for the user.
    """

    def __init__(
        self,
        loader: PartitionLoader,
        cache: OutputCache | None = None,
        on_chunk: Callable[[], None] = lambda: None,
    ) -> None:
        self._loader, self._cache, self._on_chunk = loader, cache, on_chunk
        self._is_bound = False
        self._leaves: dict[int, _Leaf] = {}
        self._opened: dict[object, _Opened] = {}
        self.warnings: list[str] = []

    @contextmanager
    def bound(self, modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        """Let the frozen layers among the modules use these outputs in the block."""
        found = [part for module in modules for part in module.modules() if isinstance(part, Frozen)]
        # Ranks compute with sharded parameters together, at each call.
        layers = [frozen for frozen in found if not _is_sharded(frozen)]
        if layers:
            source = torch.compiler.disable(self.outputs)  # type: ignore[no-untyped-call]  # reads files
            for frozen in layers:
                frozen.source = source
        self._is_bound = bool(layers)
        try:
            yield
            for opened in self._opened.values():
                opened.require_unchanged()
        finally:
            for frozen in layers:
                frozen.source = None
            self._is_bound = False
            self._leaves.clear()
            self._opened.clear()

    def begin_batch(self, batch: Batch) -> Batch:
        """Record the batch that user code gets, and return it. Has no effect if the batch is recorded already."""
        if self._is_bound:
            rows = self._loader.positions

            def record(name: str, leaf: torch.Tensor | Ragged) -> None:
                key, known = id(leaf), self._leaves.get(id(leaf))
                if known is not None and known.reference() is leaf and known.rows is rows:
                    return
                version = leaf_version(leaf)
                if version is not None:
                    forget = weakref.ref(leaf, lambda _: self._leaves.pop(key, None))
                    self._leaves[key] = _Leaf(reference=forget, name=name, rows=rows, version=version)

            _zipped(record, self._loader.input_names, batch[0])
        return batch

    def outputs(self, frozen: Frozen, inputs: Any) -> Any:
        """Return the outputs for unchanged inputs of a batch; `None` for other arguments."""
        leaves: list[_Leaf] = []

        def name_of(leaf: Any) -> str:
            found = self._leaves.get(id(leaf))
            if found is not None and found.reference() is leaf and found.version == leaf_version(leaf):
                leaves.append(found)
                return found.name
            return ""

        node = map_leaves(name_of, inputs)
        names: list[str] = []
        map_leaves(names.append, node)
        if not names or not all(names) or any(leaf.rows is not leaves[0].rows for leaf in leaves):
            return None
        leaf = first_leaf(inputs)
        device = leaf.values.device if isinstance(leaf, Ragged) else leaf.device
        call = LayerCall(frozen=frozen, node=node, device=device)
        key = (id(frozen), repr(node), device, autocast_of(device))
        opened = self._opened.get(key)
        if opened is None:
            opened = self._opened[key] = self._open(call)
        if opened.outputs is None or not opened.is_current():
            return None
        return opened.outputs.take(leaves[0].rows, device)

    # --- opening -------------------------------------------------------------------------------------

    def _open(self, call: LayerCall) -> _Opened:
        frozen = call.frozen
        settings, hashes = _settings(frozen), _weight_hashes(frozen)
        drawn = generator_states()
        try:
            outputs = self._found_or_computed(call, hashes)
        finally:
            restore_generator_states(drawn)
        versions = [tensor_version(tensor) for tensor in hashes]
        return _Opened(outputs=outputs, frozen=frozen, settings=settings, hashes=hashes, versions=versions)

    def _found_or_computed(
        self, call: LayerCall, hashes: Mapping[torch.Tensor, str]
    ) -> StoredOutputs | HeldOutputs | None:
        if self._cache is None:
            return self._held(call)
        try:
            digest = call.digest(hashes)
        except UnknownStateError as error:
            self._warn(f"the outputs of {call.frozen.label} are computed in each sub-epoch, because {error}")
            return self._held(call)
        folders = []
        for partition in self._loader.partitions:
            folder = self._stored(self._cache, f"{digest[:32]}-{partition.checksum[-32:]}", call, partition)
            if folder is None:
                return self._held(call)
            folders.append(folder)
        try:
            return StoredOutputs(folders)
        except CerebroError as error:  # another process removed an entry to make room
            log.warning("stored outputs of %s cannot be read: %s", call.frozen.label, error)
            return self._held(call)

    def _stored(self, cache: OutputCache, key: str, call: LayerCall, partition: MappedPartition) -> Any:
        found = cache.find(key)
        if found is not None or cache.is_direct(key):
            return found
        try:
            with cache.writing(key, self._on_chunk):
                found = cache.find(key)
                if found is not None or cache.is_direct(key):
                    return found
                chunks = call.computed(self._loader, partition, self._on_chunk)
                stored = cache.store(key, chunks, partition.rows, call.frozen.label)
        except OSError as error:
            self._warn(f"the outputs of {call.frozen.label} cannot be stored ({error})")
            return None
        if stored.warning:
            self._warn(stored.warning)
        return stored.folder

    def _held(self, call: LayerCall) -> HeldOutputs | None:
        usable = memory.own_group().usable_bytes()
        limit = None if usable is None else usable * _MEMORY_SHARE
        chunks, size = [], 0
        for partition in self._loader.partitions:
            for chunk in call.computed(self._loader, partition, self._on_chunk):
                chunks.append(chunk)
                size += num_bytes(chunk)
                if limit is not None and size > limit:
                    self._warn(
                        f"the outputs of {call.frozen.label} fit neither the cache nor {limit:,.0f} bytes of memory, "
                        "so they are computed in each batch and may differ in the last digits. Enlarge the worker's "
                        "shard volume or CEREBRO_FROZEN_CACHE_MIB"
                    )
                    return None
        return HeldOutputs(chunks) if chunks else None

    def _warn(self, text: str) -> None:
        log.warning("%s", text)
        if text not in self.warnings:
            self.warnings.append(text)


def _zipped(record: Callable[[str, torch.Tensor | Ragged], None], names: Any, tree: Any) -> None:
    """Call `record` with each name and leaf of two trees with the same nesting."""
    if isinstance(names, dict) and isinstance(tree, dict):
        for key, name in names.items():
            if key in tree:
                _zipped(record, name, tree[key])
    elif isinstance(names, tuple) and isinstance(tree, list | tuple) and len(names) == len(tree):
        for name, item in zip(names, tree, strict=True):
            _zipped(record, name, item)
    elif isinstance(names, str) and isinstance(tree, torch.Tensor | Ragged):
        record(names, tree)

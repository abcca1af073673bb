"""Shared parts of training tests: volumes, a split, a linear model, a handler."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from cerebro.data.manifests import PartitionManifest
from cerebro.data.partitions import write_manifest
from cerebro.data.shards import ShardWriter
from cerebro.runtime.volumes import Volumes
from cerebro.spec import SubEpochSpec
from cerebro.usercode.encoding import encode
from cerebro.worker.child.context import Context
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import TO_CHILD
from controller.preparation.partition import shares
from model_hopper.handler import Handler
from tests.data.rows import SOURCE
from tests.state.stories import DATASET, SHA

ROWS = 61
"""Rows of a split; no number of workers divides it."""


class Linear(SubEpochSpec):
    """A linear model on a row's three inputs; subclasses add the loop."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Linear(3, 1)]


def learn_from(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Step on the loss of a batch, as user code does."""
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


def volumes_in(folder: Path) -> Volumes:
    """Place all volumes in a folder."""
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})


def write_split(volumes: Volumes, split: str, workers: int) -> dict[int, int]:
    """Write the rows in `workers` partitions with shards of five rows; return their sizes."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(ROWS, 3)).astype(np.float32)
    labels = (inputs.sum(1) + random.normal(size=ROWS) > 0.7).astype(np.int64)
    sizes = dict(enumerate(shares(ROWS, [1.0 + worker for worker in range(workers)])))
    first = 0
    for partition, size in sizes.items():
        folder = volumes.partition(DATASET, split, partition)
        folder.mkdir(parents=True)
        shards = []
        for index, start in enumerate(range(0, size, 5)):
            stop = min(start + 5, size)
            with ShardWriter(
                folder, index, start=start, stop=stop, source=SOURCE, id_type=pa.int64()
            ) as writer:
                for row in range(first + start, first + stop):
                    writer.add(row, inputs[row], int(labels[row]))
                shards.append(writer.close())
        write_manifest(folder, PartitionManifest.of(SOURCE, shards))
        first += size
    return sizes


@contextmanager
def handler_of(spec: SubEpochSpec, volumes: Volumes, *, memory_bytes: int | None = None) -> Iterator[Handler]:
    """Make a worker's handler with the spec as user code `SHA`.

    Args:
        memory_bytes: memory limit of the device, a share of cores.
    """
    ours, theirs = socket.socketpair()
    context = Context(Channel(theirs, TO_CHILD), volumes, cores=1, memory_bytes=memory_bytes)
    context.user_code.learn({SHA: encode(spec).encoded})
    with ours, theirs:
        handler = Handler(context)
        try:
            yield handler
        finally:
            handler._loader.shutdown()

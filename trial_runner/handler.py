"""The handler of tasks that measure. Runs in a worker's child process, in each of several for a way of several ranks;
keeps nothing between tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import torch

# See `model_hopper.handler`.
import torch._dynamo

from cerebro.contract.tasks import InspectTask, TaskBody, TaskResult, Timings
from cerebro.data.fields import Layout
from cerebro.data.partitions import read_manifest
from cerebro.errors import DataError, ShardCorruptError, SpecError
from cerebro.spec import SubEpochSpec
from cerebro.usercode.fingerprint import fingerprint
from cerebro.worker.agent.context import Context
from trial_runner.inspecting import inspect


class Handler:
    """Inspects and tries; see `cerebro.worker.agent.context.Handler`."""

    def __init__(self, context: Context) -> None:
        self._context, self._volumes = context, context.volumes

    def preload(self, body: TaskBody) -> None:
        """Nothing is worth it."""

    def rest(self) -> None:
        """Nothing is kept."""

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Do one task."""
        if isinstance(body, InspectTask):
            return self._inspect(body)
        raise SpecError(f"trial_runner does no task of kind {body.kind}")

    def _inspect(self, body: InspectTask) -> TaskResult:
        torch.set_num_threads(self._context.cores)
        spec: SubEpochSpec = self._context.spec(body.code, body.misc)
        timings = Timings(start_s=self._context.work_begins())
        found = inspect(spec, body, keyed_by=self._keyed_by(spec, body.dataset))
        return TaskResult(inspection=found, timings=timings)

    def _keyed_by(self, spec: SubEpochSpec, dataset: str) -> Mapping[str, str] | None:
        """What outcomes of trials depend on beside model, way and devices; `None` where this worker has nothing of the
        data set, and cannot tell."""
        layout = self._layout(dataset)
        if layout is None:
            return None
        rows = json.dumps(layout.to_json(), sort_keys=True)
        return {"torch": torch.__version__, "spec": fingerprint(spec), "rows": rows}

    def _layout(self, dataset: str) -> Layout | None:
        for folder in sorted(self._volumes.partition(dataset, "train", 0).parent.glob("partition-*")):
            with suppress(DataError, ShardCorruptError):
                layout = read_manifest(folder).layout
                if layout is not None:
                    return layout
        return None

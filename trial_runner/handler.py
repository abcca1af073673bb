"""The handler of `inspect` and `trial` tasks. Keeps nothing between tasks.

The child's task loop creates `Handler` and calls `handle`. For a parallel plan with several ranks, it runs in one child
process for each rank. `inspect` reads no rows. A trial reads one training partition of this worker, and writes and
removes one temporary checkpoint. Neither trains a model for the run or chooses a plan: `controller.sources.trials`
does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress

import torch

# See `model_hopper.handler`.
import torch._dynamo

from cerebro.contract.tasks.bodies import InspectTask, TaskBody, TrialTask
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.data.fields import Layout
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import read_manifest
from cerebro.errors import DataError, NotApplicableError, ShardCorruptError, SpecError
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Fused, Group, resolve
from cerebro.techniques.ranks import Alone, RankGroup
from cerebro.usercode.fingerprint import fingerprint
from cerebro.worker.child.context import BaseHandler
from cerebro.worker.training.frozen_layers.output_cache import OutputCache
from cerebro.worker.training.sub_epoch import default_device, require_gpu
from trial_runner.fused_trial import FusedTrial
from trial_runner.inspection import inspect
from trial_runner.trial import Trial


class Handler(BaseHandler):
    """Inspects models and runs trials of parallel plans."""

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Execute one task."""
        if self._context.has_gpu:
            require_gpu(default_device())
        if isinstance(body, InspectTask):
            return self._inspect(body)
        if isinstance(body, TrialTask):
            return self._run_trial(body, attempt)
        raise SpecError(f"trial_runner does not execute tasks of kind {body.kind!r}")

    def _inspect(self, body: InspectTask) -> TaskResult:
        torch.set_num_threads(self._context.cores)
        spec: SubEpochSpec = self._context.user_code.spec(body.code, body.misc, body.fitted)
        timings = Timings(start_s=self._context.start_up.finish())
        inspection = inspect(
            spec,
            body,
            opened=self._context.user_code.decode_once,
            keyed_by=self._cache_facts(spec, body.dataset),
        )
        return TaskResult(inspection=inspection, timings=timings)

    def _run_trial(self, body: TrialTask, attempt: int) -> TaskResult:
        torch.set_num_threads(self._context.cores)
        volumes = self._volumes
        folder = volumes.checkpoints / body.experiment / body.run / "trials"
        name = f"{body.group}-{body.id}-a{attempt}.pt"
        ranks = self._context.ranks
        is_first = ranks is None or ranks.rank == 0
        if is_first:
            with volume_errors_named(folder):
                folder.mkdir(parents=True, exist_ok=True)
        spec: SubEpochSpec = self._context.user_code.spec(body.code, body.misc, body.fitted)
        timings = Timings(start_s=self._context.start_up.finish())
        rows = MappedRows.open((volumes.partition(body.dataset, "train", body.partition),))
        try:
            technique = resolve(body.parallel_plan, self._context.user_code.decode_once)
        except SpecError as error:
            raise NotApplicableError(str(error)) from error
        began = time.monotonic()
        group = self._join_group(body)
        start_s = time.monotonic() - began
        try:
            memory = self._context.device_memory
            cache = OutputCache(volumes.frozen_outputs, body.dataset, self._context.frozen_cache_bytes)
            kind = FusedTrial if technique.name == Fused.name else Trial
            trial = kind(spec, body, technique, group, rows, device_memory=memory, cache=cache)
            outcome = trial.run(folder, name)
        finally:
            group.leave()
        timings = timings.model_copy(update={"compute_s": outcome.seconds})
        return TaskResult(trial=outcome.model_copy(update={"start_s": start_s}), timings=timings)

    def _join_group(self, body: TrialTask) -> Group:
        """Join the rank group of the trial, and wait for the other ranks."""
        ranks, gpus = self._context.ranks, torch.cuda.device_count()
        if ranks is None:
            return Alone(
                tuple(f"cuda:{n}" for n in range(gpus)) if gpus else ("cpu",) * body.parallel_plan.size
            )
        return RankGroup.join(
            ranks.folder, rank=ranks.rank, size=ranks.size, device="cuda:0" if gpus else "cpu"
        )

    def _cache_facts(self, spec: SubEpochSpec, dataset: str) -> Mapping[str, str] | None:
        """Return the facts besides model, plan and devices that decide a trial's outcome.

        `None` if this worker has no partition of the data set.
        """
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

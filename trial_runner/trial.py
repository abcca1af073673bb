"""One trial: the user's `train` on some batches by one parallel plan.

`trial_runner.handler` runs a `Trial` on every rank of the plan; only rank 0's outcome is reported. A trial verifies
that the gradient equals a single device's, and measures the time of a batch, memory and the time of a checkpoint.
Before the others start, rank 0 also computes the gradient on a single device, with the same weights and rows. The
trained weights are discarded. The controller decides from the outcome whether the plan is used.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cerebro.contract.tasks.bodies import TrialTask
from cerebro.contract.trials import TrialOutcome
from cerebro.data.mapped import MappedRows
from cerebro.runtime.tracebacks import line_of
from cerebro.runtime.usage import memory
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Group, Technique
from cerebro.techniques.named import KINDS
from cerebro.techniques.ranks import Alone
from cerebro.worker.child.device_memory import DeviceMemory
from cerebro.worker.child.memory_errors import whose_memory
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.joint_read import Unchecked, load_together
from cerebro.worker.training.checkpoints.storable import state_bytes
from cerebro.worker.training.frameworks import as_torch_spec
from cerebro.worker.training.frozen_layers.layers import FrozenLayers
from cerebro.worker.training.frozen_layers.output_cache import OutputCache
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.ranks.grouped import GroupTrainee, prepare
from cerebro.worker.training.seeds import seed_everything, sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, using_outputs
from cerebro.worker.training.tracked_checkpoint import Checkpoint
from cerebro.worker.training.trainee import Trainee
from trial_runner.gradients import differences, is_rounding
from trial_runner.limited_loader import LimitedLoader
from trial_runner.stopwatch import Stopwatch
from trial_runner.train_observer import MAX_BATCHES, Observed, observe

log = logging.getLogger(__name__)

TOLERANCE, NOISES = 1e-4, 10.0
"""Thresholds for equal gradients.

The difference must be below `TOLERANCE`, or below `NOISES` times the effect of the row order.
"""
MAX_NOISE = 5e-4
"""Largest effect of the row order for a verified gradient; more could hide an error of 1 %."""
INEXACT = 0.2
"""Allowed difference for a technique with another precision, below the effect of a wrong scale."""
_MAX_CALLS = 30
"""Maximum number of calls of `train`, for partitions with few batches."""
FILE_BYTES = 1 << 30
"""Maximum bytes written and read to measure checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of a gradient with a single device's.

    Attributes:
        is_verified: True if the gradients are equal.
        reason: why the plan is ruled out, or "".
        unverified: why the comparison is inconclusive, or "".
        error: largest relative difference.
    """

    is_verified: bool = False
    reason: str = ""
    unverified: str = ""
    error: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """Gradient of a single device."""

    observed: Observed
    noises: Mapping[str, float]
    """Parameter name -> effect of another row order on its gradient."""
    unverified: str = ""
    """Why it verifies no gradient; it can still show that one is far off."""


class Trial:
    """One trial, on one rank.

    Args:
        rows: rows of one partition.
        device_memory: counter of the device's memory.
        cache: stored outputs of frozen layers; `None` computes them in memory.
    """

    def __init__(
        self,
        spec: SubEpochSpec,
        body: TrialTask,
        technique: Technique,
        group: Group,
        rows: MappedRows,
        *,
        device_memory: DeviceMemory | None = None,
        cache: OutputCache | None = None,
    ) -> None:
        self._cache = cache
        self._device_memory = device_memory or DeviceMemory()
        self._spec, self._body, self._technique, self._group, self._rows = spec, body, technique, group, rows
        batch_size = body.hyperparams["batch_size"]
        assert isinstance(batch_size, int)
        self._batch_size = batch_size
        self._seed = sub_epoch_seed(body.seed, body.model, 1, body.partition)

    def run(self, root: Path, name: str) -> TrialOutcome:
        """Run the trial. Collective; only rank 0's result counts.

        Args:
            root: folder of the checkpoint volume; must exist.
            name: name of a temporary file in it.

        Raises:
            NotApplicableError: the technique cannot train the model.
            Exception: an error of user code, or a lack of memory.
        """
        began = time.monotonic()
        is_single = self._technique.name == "single"
        reference: _Reference | str = "" if is_single or self._group.rank else self._reference()
        self._group.barrier()
        self._settle_memory()
        trainee = self._trainee(self._technique, self._group)
        comparison = Comparison(is_verified=True)
        if not is_single:
            observed = self._observe(trainee)
            comparison = self._group.gathered(
                self._compare(reference, observed) if not self._group.rank else None
            )[0]
        if comparison.reason:
            return TrialOutcome(
                reason=comparison.reason,
                cause="gradient",
                error=comparison.error,
                seconds=time.monotonic() - began,
            )
        stopwatch = self._measure_time(trainee)
        device_bytes, host = self._peaks()
        trainee.checkpoint.settle()
        files = self._measure_checkpoint(trainee, root, name)
        pace = stopwatch.pace()
        return TrialOutcome(
            reason="" if pace.batches else "train() ended before a batch was timed",
            cause="" if pace.batches else "failure",
            batch_s=pace.batch_s,
            sigma=pace.sigma,
            batches=pace.batches,
            device_bytes=device_bytes,
            host_bytes=host,
            is_verified=comparison.is_verified,
            unverified=comparison.unverified,
            error=comparison.error,
            seconds=time.monotonic() - began,
            **files,
        )

    # --- the gradient --------------------------------------------------------------------------------

    def _reference(self) -> _Reference | str:
        """Compute the gradient on a single device, or return why that fails. Runs on one rank."""
        for technique in (KINDS["single"](), KINDS["offload"]()):
            alone = Alone((self._group.device,))
            try:
                return self._reference_by(technique, alone)
            except Exception as error:
                if whose_memory(error) is None:
                    raise
                log.info(
                    "one device has too little memory for a reference with %s: %s",
                    technique.name,
                    line_of(error),
                )
            finally:
                alone.leave()
                self._settle_memory()
        return "no single device holds the model, so there is nothing to compare its gradient with"

    def _reference_by(self, technique: Technique, alone: Group) -> _Reference | str:
        observed = self._observe(self._trainee(technique, alone))
        if not observed.gradients:
            return f"no optimizer of torch took a step in {MAX_BATCHES} batches"
        again = self._observe(self._trainee(technique, alone), permuted=1)
        noises = differences(again.gradients, observed.gradients)
        noisy = [name for name, noise in noises.items() if noise > MAX_NOISE]
        of_note = [name for name in noisy if not is_rounding(name, observed.gradients)]
        reason = ""
        if noisy:
            which = max(of_note or noisy, key=noises.__getitem__)
            reason = (
                f"the gradient of {which} depends on the order of a batch's rows (it changes by {noises[which]:.2g}), "
                "so it cannot be compared"
            )
        return reason if of_note else _Reference(observed=observed, noises=noises, unverified=reason)

    def _compare(self, reference: _Reference | str, observed: Observed) -> Comparison:
        label = self._body.parallel_plan.label
        if isinstance(reference, str):
            return Comparison(unverified=reference)
        expected = reference.observed
        if (observed.steps, observed.batches) != (expected.steps, expected.batches):
            return Comparison(
                reason=f"with {label}, optimizers step {observed.steps} times in {observed.batches} batches; on one "
                f"device {expected.steps} times in {expected.batches}"
            )
        if not _are_same(observed.numbers, expected.numbers):
            return Comparison(
                reason=f"with {label}, an optimizer has {_first_difference(observed.numbers, expected.numbers)}. "
                "Compute settings from the rows of the global batch, not of a rank's share."
            )
        errors = differences(observed.gradients, expected.gradients)
        is_exact = self._technique.is_exact(self._body.parallel_plan.params)
        least = TOLERANCE if is_exact else INEXACT
        over = {
            name: error
            for name, error in errors.items()
            if not error <= max(least, NOISES * reference.noises.get(name, 0.0))
        }
        which = max(over or errors, key=errors.__getitem__)
        error = errors[which]
        if over:
            return Comparison(
                error=error if math.isfinite(error) else None,
                reason=f"with {label}, the gradient of {which} differs from one device's by {error:.2g} (relative). "
                "See Hints.loss and Hints.terms, and check whether the loss of a row depends on other rows.",
            )
        if not is_exact:
            return Comparison(
                error=error,
                unverified=f"it computes in another precision; the gradient of {which} differs by {error:.2g}",
            )
        return Comparison(is_verified=not reference.unverified, unverified=reference.unverified, error=error)

    def _observe(self, trainee: Trainee, *, permuted: int | None = None) -> Observed:
        with observe(trainee.modules) as observed:
            loader = self._loader(trainee, observed.should_continue, self._comparison_batch_size, permuted)
            self._train(trainee, loader)
        return observed

    # --- time, memory, files -------------------------------------------------------------------------

    def _measure_time(self, trainee: Trainee) -> Stopwatch:
        group = self._group
        device = torch.device(group.device)
        self._reset_peaks()
        stopwatch = Stopwatch(
            synchronize=lambda: torch.cuda.synchronize(device) if device.type == "cuda" else None,
            together=lambda value: int(group.gathered(value)[0]),
        )
        handed, calls = 0, 0
        while not stopwatch.is_over and calls < _MAX_CALLS:
            trainee.checkpoint = Checkpoint()  # as in a model's first sub-epoch
            should_continue = partial(_continue_from, stopwatch.should_continue, handed)
            loader = self._loader(trainee, should_continue, self._batch_size)
            self._train(trainee, loader)
            handed, calls = handed + loader.handed, calls + 1
            if not stopwatch.is_over:
                stopwatch.pause(handed)  # end of the partition
        return stopwatch

    def _measure_checkpoint(self, trainee: Trainee, root: Path, name: str) -> dict[str, Any]:
        """Measure the seconds for writing and reading a checkpoint, and its size. Collective."""
        group, state = self._group, trainee.local_state()
        size = state_bytes(state)
        part = _first_tensors(state, FILE_BYTES)
        share = state_bytes(part) / size if size else 1.0
        device = self._technique.made_on(group, self._body.parallel_plan.params)
        try:
            began = time.monotonic()
            reference = trainee.save(root, name, part)
            saved = time.monotonic()

            def find() -> Unchecked:
                assert reference is not None  # only rank 0 calls this
                return Unchecked(root / name, reference)

            load_together(find, group, device)
            group.barrier()
            loaded = time.monotonic()
        finally:
            if group.rank == 0:
                (root / name).unlink(missing_ok=True)
        return {"save_s": (saved - began) / share, "load_s": (loaded - saved) / share, "state_bytes": size}

    # --- the user's train ------------------------------------------------------------------------------

    def _trainee(self, technique: Technique, group: Group) -> Trainee:
        body = self._body
        device = torch.device(technique.made_on(group, body.parallel_plan.params))
        trainee = create(self._spec, body.hyperparams, seed=body.seed, model=body.model, device=device)
        if technique.name == "single":
            return trainee
        params = body.parallel_plan.params if technique is self._technique else {}
        return prepare(self._spec, trainee, technique, params, group)

    @property
    def _comparison_batch_size(self) -> int:
        """Batch size for comparing gradients.

        If the partition's last batch cannot be divided evenly between ranks, this size cannot either, so that the
        comparison shows errors that equal shares hide. A rank may get no row and then borrows one.
        """
        size, ranks = self._batch_size, self._group.size
        is_ragged = self._rows.num_rows % size != 0
        return size - 1 if ranks > 1 and is_ragged and size % ranks == 0 else size

    def _loader(
        self,
        trainee: Trainee,
        should_continue: Callable[[int], bool],
        batch_size: int,
        permuted: int | None = None,
    ) -> LimitedLoader:
        share = trainee.share if isinstance(trainee, GroupTrainee) else (0, 1)
        return LimitedLoader(
            self._rows,
            should_continue,
            batch_size=batch_size,
            seed=self._seed,
            device=self._group.device,
            share=share,
            permuted=permuted,
        )

    def _train(self, trainee: Trainee, loader: LimitedLoader) -> None:
        """Call the user's `train` as in a sub-epoch.

        Errors after the loader's early end are ignored, because `train` has seen only some rows.
        """
        feed = InstrumentedLoader(loader)
        feed.frozen_layers = FrozenLayers(loader, self._cache)
        seed_everything(self._seed)
        for module in trainee.modules:
            module.train()
        try:
            with trainee.running(feed, self._seed), using_outputs(trainee.modules, feed):
                as_torch_spec(self._spec).train(
                    trainee.modules, trainee.checkpoint, feed, dict(self._body.hyperparams)
                )
        except Exception:
            if not loader.has_ended:
                raise
        self._device_memory.check()

    # --- memory ----------------------------------------------------------------------------------------

    def _settle_memory(self) -> None:
        gc.collect()
        if self._group.device.startswith("cuda"):
            torch.cuda.empty_cache()
        self._reset_peaks()
        self._device_memory.begin()

    def _reset_peaks(self) -> None:
        memory.reset_peak()
        self._device_memory.count_peak_anew()
        if self._group.device.startswith("cuda"):
            for device in self._group.devices:
                torch.cuda.reset_peak_memory_stats(device)

    def _peaks(self) -> tuple[int, int]:
        """Return the peak bytes of the fullest device, and of the host over all ranks. Collective."""
        group = self._group
        used = self._device_memory.taken()
        if group.device.startswith("cuda"):
            used = max(torch.cuda.max_memory_allocated(device) for device in group.devices)
        peaks = group.gathered((used, memory.peak_bytes()))
        return max(each[0] for each in peaks), sum(each[1] for each in peaks)


def _continue_from(should_continue: Callable[[int], bool], earlier: int, batches: int) -> bool:
    return should_continue(earlier + batches)


def _are_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return len(one) == len(other) and not _first_difference(one, other)


def _first_difference(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """Describe the first setting that differs between the optimizers, or return ""."""
    for one, other in zip(actual, expected, strict=False):
        for name in {**one, **other}:
            a, b = one.get(name), other.get(name)
            is_number = isinstance(a, float | int) and isinstance(b, float | int)
            if not (math.isclose(a, b, rel_tol=1e-9) if is_number else a == b):  # type: ignore[arg-type]
                return f"{name} = {a!r} where it has {b!r} on one device"
    if len(actual) != len(expected):
        return f"{len(actual)} parameter groups, not {len(expected)},"
    return ""


def _first_tensors(state: State, limit: int) -> State:
    """Return the first tensors of a state, up to `limit` bytes and at least one.

    All ranks return the same tensors; a sharded tensor counts with its full size.
    """
    remaining = limit

    def truncate(value: Any) -> Any:
        nonlocal remaining
        if isinstance(value, torch.Tensor):
            if remaining <= 0:
                return None
            remaining -= value.numel() * value.element_size()
            return value
        if isinstance(value, Mapping):
            return {key: truncate(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [truncate(item) for item in value]
        return value

    return {"models": truncate(state["models"]), "checkpoint": truncate(state["checkpoint"])}

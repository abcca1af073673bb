"""One trial: the user's `train` on some batches by one way. Whether its gradient is that of one device, how long a
batch takes, how much memory it needs, and how long its checkpoints take.

Runs on every rank of a way of several, each with its device; rank 0 also computes the gradient of one device, by itself
and before the others begin, on the same weights and rows.
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

from cerebro.contract.tasks import TrialTask
from cerebro.contract.trials import TrialOutcome
from cerebro.data.mapped import MappedRows
from cerebro.runtime.tracebacks import line_of
from cerebro.runtime.usage import memory
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Group, Technique
from cerebro.techniques.named import KINDS
from cerebro.techniques.ranks import Alone
from cerebro.worker.agent.device_memory import DeviceMemory
from cerebro.worker.agent.memory_errors import whose_memory
from cerebro.worker.training.checkpoint import State
from cerebro.worker.training.frameworks import hopped
from cerebro.worker.training.grouped import GroupTrainee, prepare
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.reading_together import Unchecked, load_together
from cerebro.worker.training.seeds import seed_everything, sub_epoch_seed
from cerebro.worker.training.storable import state_bytes
from cerebro.worker.training.sub_epoch import Trainee, create
from cerebro.worker.training.tracking import Checkpoint
from trial_runner.clocking import Stopwatch
from trial_runner.ending import EndingLoader
from trial_runner.gradients import differences, is_rounding
from trial_runner.observing import MOST_BATCHES, Seen, observing

log = logging.getLogger(__name__)

TOLERANCE, NOISES = 1e-4, 10.0
"""The gradient of a parameter is the same if it differs by less than so much, or by less than so many times what the
order of a batch's rows changes of it."""
MOST_NOISE = 5e-4
"""Where the order of rows changes more, a gradient that is wrong by a per cent could pass as the same, so none is
verified."""
INEXACT = 0.2
"""By so much the gradient may differ where a technique that the user has named computes in another precision: less than
what a wrong scale or share of a batch makes."""
_MOST_CALLS = 30
"""Of `train`, for partitions of few batches."""
FILE_BYTES = 1 << 30
"""At most so much is written and read to learn how long that takes."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of a gradient. `reason`: why the way is ruled out; `unverified`: why nothing is known."""

    is_verified: bool = False
    reason: str = ""
    unverified: str = ""
    error: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """What one device computes."""

    seen: Seen
    noises: Mapping[str, float]
    """Parameter -> what another order of the batch's rows changes of its gradient."""
    unverified: str = ""
    """Why no gradient is verified by it: another one may be told from it only if it is far from it."""


class Trial:
    """One trial, on one rank.

    Args:
        rows: of a partition.
        device_memory: where that of the device is counted.
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
    ) -> None:
        self._device_memory = device_memory or DeviceMemory()
        self._spec, self._body, self._technique, self._group, self._rows = spec, body, technique, group, rows
        given = body.hyperparams["batch_size"]
        assert isinstance(given, int)
        self._batch_size = given
        self._seed = sub_epoch_seed(body.seed, body.model, 1, body.partition)

    def run(self, root: Path, name: str) -> TrialOutcome:
        """Try it. Collective; the result counts on rank 0.

        Args:
            root, name: of a file on the checkpoint volume, in a folder that is there; it is removed again.

        Raises:
            NotApplicableError: the technique cannot train the model. Whatever else: user code's, or lack of memory.
        """
        began = time.monotonic()
        is_single = self._technique.name == "single"
        reference: _Reference | str = "" if is_single or self._group.rank else self._reference()
        self._group.barrier()
        self._settle_memory()
        trainee = self._trainee(self._technique, self._group)
        verdict = Verdict(is_verified=True)
        if not is_single:
            seen = self._observed(trainee)
            verdict = self._group.gathered(self._judged(reference, seen) if not self._group.rank else None)[0]
        if verdict.reason:
            return TrialOutcome(
                reason=verdict.reason, cause="gradient", error=verdict.error, seconds=time.monotonic() - began
            )
        stopwatch = self._timed(trainee)
        device_bytes, host = self._peaks()
        trainee.checkpoint.settle()
        files = self._files(trainee, root, name)
        pace = stopwatch.pace()
        return TrialOutcome(
            reason="" if pace.batches else "train() ended before a batch was timed",
            cause="" if pace.batches else "failure",
            batch_s=pace.batch_s,
            sigma=pace.sigma,
            batches=pace.batches,
            device_bytes=device_bytes,
            host_bytes=host,
            is_verified=verdict.is_verified,
            unverified=verdict.unverified,
            error=verdict.error,
            seconds=time.monotonic() - began,
            **files,
        )

    # --- the gradient --------------------------------------------------------------------------------

    def _reference(self) -> _Reference | str:
        """What one device computes, or why that is not known. On one rank, by itself."""
        for technique in (KINDS["single"](), KINDS["offload"]()):
            alone = Alone((self._group.device,))
            try:
                return self._reference_by(technique, alone)
            except Exception as error:
                if whose_memory(error) is None:
                    raise
                log.info("one device holds no reference by %s: %s", technique.name, line_of(error))
            finally:
                alone.leave()
                self._settle_memory()
        return "no single device holds the model, so there is nothing to compare its gradient with"

    def _reference_by(self, technique: Technique, alone: Group) -> _Reference | str:
        seen = self._observed(self._trainee(technique, alone))
        if not seen.gradients:
            return f"no optimizer of torch took a step in {MOST_BATCHES} batches"
        again = self._observed(self._trainee(technique, alone), permuted=1)
        noises = differences(again.gradients, seen.gradients)
        noisy = [name for name, noise in noises.items() if noise > MOST_NOISE]
        of_note = [name for name in noisy if not is_rounding(name, seen.gradients)]
        reason = ""
        if noisy:
            which = max(of_note or noisy, key=noises.__getitem__)
            reason = (
                f"the gradient of {which} depends on the order of a batch's rows (it changes by {noises[which]:.2g}), "
                "so it cannot be compared"
            )
        return reason if of_note else _Reference(seen=seen, noises=noises, unverified=reason)

    def _judged(self, reference: _Reference | str, seen: Seen) -> Verdict:
        """What the comparison says; on rank 0."""
        label = self._body.parallel_plan.label
        if isinstance(reference, str):
            return Verdict(unverified=reference)
        expected = reference.seen
        if (seen.steps, seen.batches) != (expected.steps, expected.batches):
            return Verdict(
                reason=f"by {label}, optimizers step {seen.steps} times in {seen.batches} batches; on one device "
                f"{expected.steps} times in {expected.batches}"
            )
        if not _are_same(seen.numbers, expected.numbers):
            return Verdict(
                reason=f"by {label}, an optimizer has {_first_other(seen.numbers, expected.numbers)}: what is computed "
                "from the number of rows or batches must be computed from those of the whole batch"
            )
        errors = differences(seen.gradients, expected.gradients)
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
            return Verdict(
                error=error if math.isfinite(error) else None,
                reason=f"by {label}, the gradient of {which} differs from that of one device by {error:.2g} of it: see "
                "Hints.loss and Hints.terms, and whether the loss of a row depends on other rows",
            )
        if not is_exact:
            return Verdict(
                error=error,
                unverified=f"it computes in another precision: the gradient of {which} differs by {error:.2g}",
            )
        return Verdict(is_verified=not reference.unverified, unverified=reference.unverified, error=error)

    def _observed(self, trainee: Trainee, *, permuted: int | None = None) -> Seen:
        with observing(trainee.modules) as seen:
            loader = self._loader(trainee, seen.goes_on, self._uneven, permuted)
            self._train(trainee, loader)
        return seen

    # --- time, memory, files -------------------------------------------------------------------------

    def _timed(self, trainee: Trainee) -> Stopwatch:
        group = self._group
        device = torch.device(group.device)
        self._reset_peaks()
        stopwatch = Stopwatch(
            synchronize=lambda: torch.cuda.synchronize(device) if device.type == "cuda" else None,
            together=lambda value: int(group.gathered(value)[0]),
        )
        handed, calls = 0, 0
        while not stopwatch.is_over and calls < _MOST_CALLS:
            trainee.checkpoint = Checkpoint()  # as a sub-epoch that knows of none before it
            goes_on = partial(_from, stopwatch.goes_on, handed)
            loader = self._loader(trainee, goes_on, self._batch_size)
            self._train(trainee, loader)
            handed, calls = handed + loader.handed, calls + 1
            if not stopwatch.is_over:
                stopwatch.pause(handed)  # the partition has no more
        return stopwatch

    def _files(self, trainee: Trainee, root: Path, name: str) -> dict[str, Any]:
        """Seconds that a checkpoint takes to be written and to be read as a sub-epoch does it, and its size.
        Collective."""
        group, state = self._group, trainee.local_state()
        size = state_bytes(state)
        part = _part(state, FILE_BYTES)
        share = state_bytes(part) / size if size else 1.0
        device = self._technique.made_on(group, self._body.parallel_plan.params)
        try:
            began = time.monotonic()
            reference = trainee.save(root, name, part)
            saved = time.monotonic()

            def find() -> Unchecked:
                assert reference is not None  # this is rank 0, which knows the file
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
    def _uneven(self) -> int:
        """Rows of the batches that gradients are compared on: where sub-epochs have batches that cannot be shared
        evenly, as a last one is, such a one shows what equal shares would hide. Of fewer rows than ranks, too: one is
        lent one."""
        size, ranks = self._batch_size, self._group.size
        is_ragged = self._rows.num_rows % size != 0
        return size - 1 if ranks > 1 and is_ragged and size % ranks == 0 else size

    def _loader(
        self, trainee: Trainee, goes_on: Callable[[int], bool], batch_size: int, permuted: int | None = None
    ) -> EndingLoader:
        share = trainee.share if isinstance(trainee, GroupTrainee) else (0, 1)
        return EndingLoader(
            self._rows,
            goes_on,
            batch_size=batch_size,
            seed=self._seed,
            device=self._group.device,
            share=share,
            permuted=permuted,
        )

    def _train(self, trainee: Trainee, loader: EndingLoader) -> None:
        """The user's `train`, as a sub-epoch has it; what it makes of having seen only some of the rows is not asked
        for."""
        feed = InstrumentedLoader(loader)
        seed_everything(self._seed)
        for module in trainee.modules:
            module.train()
        try:
            with trainee.running(feed, self._seed):
                hopped(self._spec).train(
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
        """Most bytes of a device that were in use at once, over all devices; and of the host, over all ranks together.
        Collective."""
        group = self._group
        used = self._device_memory.taken()
        if group.device.startswith("cuda"):
            used = max(torch.cuda.max_memory_allocated(device) for device in group.devices)
        found = group.gathered((used, memory.peak_bytes()))
        return max(each[0] for each in found), sum(each[1] for each in found)


def _from(goes_on: Callable[[int], bool], before: int, batches: int) -> bool:
    return goes_on(before + batches)


def _are_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return len(one) == len(other) and not _first_other(one, other)


def _first_other(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """The first number that two optimizers do not have in common, in words; empty if there is none."""
    for one, other in zip(found, expected, strict=False):
        for name in {**one, **other}:
            a, b = one.get(name), other.get(name)
            is_number = isinstance(a, float | int) and isinstance(b, float | int)
            if not (math.isclose(a, b, rel_tol=1e-9) if is_number else a == b):  # type: ignore[arg-type]
                return f"{name} = {a!r} where it has {b!r} on one device"
    if len(found) != len(expected):
        return f"{len(found)} parameter groups, not {len(expected)},"
    return ""


def _part(state: State, limit: int) -> State:
    """As many of a state's tensors as have no more bytes than the limit; at least one. The same ones on all ranks: of
    what is in parts, the whole counts."""
    left = limit

    def kept(value: Any) -> Any:
        nonlocal left
        if isinstance(value, torch.Tensor):
            if left <= 0:
                return None
            left -= value.numel() * value.element_size()
            return value
        if isinstance(value, Mapping):
            return {key: kept(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [kept(item) for item in value]
        return value

    return {"models": kept(state["models"]), "checkpoint": kept(state["checkpoint"])}

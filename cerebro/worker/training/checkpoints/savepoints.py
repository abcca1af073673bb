"""Savepoints: the state of a sub-epoch between two batches, from which another attempt continues bit for bit.

`InstrumentedLoader` drives a `Savepoints` for each sub-epoch; `model_hopper.savepoint_timing` decides when to call
`take`, and the handler gives the function that writes the file.

A savepoint is a file like a checkpoint and records the position in the sub-epoch, so no row is trained twice or
skipped. It contains the modules with gradients and modes, the user's `checkpoint` with tracked objects, the user's
`progress`, and the generators' states. On resume, user code's `train` starts as usual. Code before the loop sees the
initial state; the savepoint is restored when the next batch is returned.

Opt-in: `docs/decisions/0030-savepoints.md` explains what makes a sub-epoch resumable.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from cerebro.contract.tasks.bodies import Validation
from cerebro.errors import SpecError, StorageFullError, VolumeError
from cerebro.runtime.tracebacks import line_of
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.storable import state_bytes, storable
from cerebro.worker.training.checkpoints.variables import Variables
from cerebro.worker.training.seeds import generator_states, restore_generator_states
from cerebro.worker.training.sub_epoch import train_sub_epoch
from cerebro.worker.training.trainee import Trainee

log = logging.getLogger(__name__)

Write = Callable[[State, int, int], None]
"""Writes this rank's state durably, with the batch number and earlier rows. Collective."""

_SHORTEST_S, _LONGEST_S = 60.0, 900.0
"""Bounds of the automatic interval between two savepoints, in seconds."""
_INTERVAL_PER_COST = 50.0
"""Minimum interval as a multiple of a savepoint's duration: limits overhead to 2 %."""
_SHORT_SUB_EPOCH_S = 120.0
"""Shorter sub-epochs, in seconds, get no automatic savepoint: repeating them is as quick."""
_BETWEEN_LOSSES_S = 20 * 3600.0
"""Default mean time between losses of a worker."""
_SPARE_S = 2.0
"""Seconds to notify the store and end, in addition to the savepoint."""

_EARLY = "call it before the loop over dataloader"
_SAY = (
    "Keep sums in dataloader.progress({...}), take counts from dataloader.step, track objects with state; or call "
    "dataloader.savepoint() to say that a sub-epoch may go on without it"
)


class Savepoints:
    """Savepoints of one sub-epoch, driven by user code's data loader (`InstrumentedLoader`).

    Args:
        trainee: model at the start of the sub-epoch; `None` only checks calls, without saving or restoring.
        write: writes a savepoint; `None` disables them.
        resumed: ``state["savepoint"]`` of the file that `trainee` was restored from.
        validation: metrics for `train`. A resumed sub-epoch uses its savepoint's metrics instead.
    """

    def __init__(
        self,
        trainee: Trainee | None = None,
        *,
        write: Write | None = None,
        resumed: Mapping[str, Any] | None = None,
        validation: Validation | None = None,
    ) -> None:
        self._trainee, self._write, self._resumed = trainee, write, resumed
        self._hook: Callable[[], object] | None = None
        self._every = 0
        """Batches between savepoints; 0 if user code has not declared the sub-epoch resumable."""
        self._progress: dict[str, Any] | None = None
        self._passes = 0
        self._first = resumed["batch"] if resumed else 0
        self._has_begun = False
        self._has_warned = False
        self._is_off = False
        self._variables: Variables | None = None
        self.validation = validation if resumed is None else _validation_of(resumed)
        self._checkpoint_content: dict[str, Any] = {}
        """Content of `checkpoint` at the savepoint."""
        self._opening: dict[str, Any] = {}
        """Content of `checkpoint` before user code changes it."""
        if trainee is not None:
            self._checkpoint_content = dict(trainee.checkpoint)
            if resumed:
                for name in resumed["opening"]["new"]:
                    trainee.checkpoint.pop(name, None)
                trainee.checkpoint.update(resumed["opening"]["before"])
                trainee.cut_kept()
            self._opening = dict(trainee.checkpoint)
            self._versions = self._weight_versions()

    # --- what user code says ---------------------------------------------------------------------

    def declare(self, hook: Callable[[], object] | None, every: int) -> None:
        """Accept the arguments of `cerebro.spec.DataLoader.savepoint`: a hook and a number of batches."""
        if self._every:
            raise SpecError("dataloader.savepoint() was called before: call it once in a sub-epoch")
        self._require_start("dataloader.savepoint()")
        if hook is not None and not callable(hook):
            raise SpecError(
                f"dataloader.savepoint() got a {type(hook).__name__}, expected a function or None"
            )
        if type(every) is not int or every < 1:
            raise SpecError(
                f"dataloader.savepoint(every={every!r}): expected a whole number of batches from 1"
            )
        self._hook, self._every = hook, every

    def progress(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the dict for `cerebro.spec.DataLoader.progress`, with the savepoint's values on resume."""
        if self._progress is not None:
            raise SpecError("dataloader.progress() was called before: keep all values in one dict")
        self._require_start("dataloader.progress()")
        if not isinstance(values, Mapping):
            raise SpecError(
                f"dataloader.progress() got a {type(values).__name__}, expected a dict of names and values"
            )
        stored = storable(dict(values), "dataloader.progress()")
        assert isinstance(stored, dict)
        self._progress = stored | (
            _rank_state(self._resumed, self._rank)["progress"] if self._resumed else {}
        )
        return self._progress

    def _require_start(self, what: str) -> None:
        if self._has_begun:
            raise SpecError(f"{what} was called after the first batch was handed out: {_EARLY}")

    # --- calls of the data loader -----------------------------------------------------------------

    def begin_pass(self) -> None:
        """Record that user code begins a loop over the data."""
        self._passes += 1
        if self._passes == 2 and self._write is not None and self._is_wanted():
            self._switch_off("train() passes over its data a second time, which has no savepoints")

    def hand_over(self) -> None:
        """Switch savepoints off: a library runs the loop, and its variables are not checked."""
        if self._write is not None and self._is_wanted() and not self._every:
            self._switch_off(f"train() hands its batches to a library. {_SAY}")

    def begin_loop(self, loader: Iterable[object]) -> None:
        """Prepare the attempt's first batch, which the generator ``loader.__iter__`` will return."""
        if self._has_begun:
            return
        self._has_begun = True
        trainee, resumed = self._trainee, self._resumed
        if trainee is None:
            return
        trainee.checkpoint.closed = "after the first batch was handed out"
        opening, now = self._opening, dict(trainee.checkpoint)
        self._opening = {
            "new": [name for name in now if name not in opening],
            "before": {name: value for name, value in opening.items() if now.get(name) is not value},
        }
        if resumed:
            trainee.checkpoint.clear()
            trainee.checkpoint.update(self._checkpoint_content)
            self._put_back(resumed)
        self._checkpoint_content, self._resumed = {}, None
        if self._write is not None and self._is_wanted() and not self._every:
            if self._versions != self._weight_versions():
                self._switch_off(f"train() changes the weights before its loop. {_SAY}")
            inner = type(loader).__iter__.__code__
            self._variables = Variables(train_sub_epoch.__code__, inner, self._held(loader))

    def _put_back(self, resumed: Mapping[str, Any]) -> None:
        assert self._trainee is not None
        modules = self._modules()
        for module, (is_training, needs_gradient), gradients in zip(
            modules, resumed["modes"], resumed["gradients"], strict=True
        ):
            for part, mode in zip(module.modules(), is_training, strict=True):
                part.training = mode
            for parameter, needed, gradient in zip(
                module.parameters(), needs_gradient, gradients, strict=True
            ):
                parameter.requires_grad_(needed)
                parameter.grad = self._trainee.part(gradient, parameter)
        restore_generator_states(_rank_state(resumed, self._rank)["generators"])

    # --- taking one ------------------------------------------------------------------------------

    def take(self, batch: int, rows: int) -> bool:
        """Save the state before this batch is returned, if possible. Return True if saved. Collective.

        A savepoint never fails a sub-epoch: an obstacle is reported in the attempt's log, once.

        Args:
            batch: number of the batch in the sub-epoch.
            rows: number of rows before it.
        """
        if self._write is None or self._trainee is None:
            return False
        if not all(self._trainee.of_ranks(self._may_take(batch))):
            return False
        # Random draws by the user's hook or by torch must not affect the sub-epoch's own draws.
        previous = generator_states()
        if self._hook is not None:
            self._hook()
        try:
            self._write(self._state(batch, rows, previous), batch, rows)
        except (StorageFullError, VolumeError) as error:
            self._warn(str(error))
            return False
        except Exception as error:  # noqa: BLE001
            # Any error: the sub-epoch can continue without savepoints.
            self._switch_off(line_of(error))
            return False
        finally:
            restore_generator_states(previous)
        return True

    def num_bytes(self) -> int:
        """Return the bytes of all tensors a savepoint would contain now."""
        if self._trainee is None:
            return 0
        gradients = [parameter.grad for module in self._modules() for parameter in module.parameters()]
        return state_bytes({**self._trainee.local_state(), "gradients": gradients})

    def _may_take(self, batch: int) -> bool:
        if self._is_off or self._passes != 1 or not self._has_begun or batch <= self._first:
            return False
        if self._every or not self._is_wanted():
            return bool(self._every) and batch % self._every == 0
        problem = self._variables.problem(batch - self._first) if self._variables is not None else ""
        if problem:
            self._warn(f"train() {problem}. {_SAY}")
        return not problem

    def _state(self, batch: int, rows: int, before: Mapping[str, Any]) -> State:
        assert self._trainee is not None
        modules = self._modules()
        progress = storable(self._progress or {}, "dataloader.progress()")
        # Each rank has its own generators and progress for its own rows.
        ranks = self._trainee.of_ranks({"generators": dict(before), "progress": progress})
        place = {
            "batch": batch,
            "rows": rows,
            "threads": torch.get_num_threads(),
            "validation": None if self.validation is None else self.validation.model_dump(),
            **ranks[0],
            **({"ranks": ranks} if len(ranks) > 1 else {}),
            "opening": storable(self._opening, "checkpoint"),
            "gradients": [[parameter.grad for parameter in module.parameters()] for module in modules],
            "modes": [
                [
                    [part.training for part in module.modules()],
                    [parameter.requires_grad for parameter in module.parameters()],
                ]
                for module in modules
            ],
        }
        state = {**self._trainee.local_state(), "changes": self._trainee.checkpoint.changes}
        return {**state, "savepoint": place}

    @property
    def _rank(self) -> int:
        return 0 if self._trainee is None else self._trainee.rank

    def _is_wanted(self) -> bool:
        """True if user code has declared its sub-epochs resumable."""
        return bool(self._every or (self._trainee is not None and self._trainee.checkpoint.tracked))

    def _switch_off(self, why: str) -> None:
        self._is_off = True
        self._warn(why)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            log.warning("no savepoint of this sub-epoch: %s", why)
        self._has_warned = True

    def _modules(self) -> list[torch.nn.Module]:
        """Return the model's modules and further tracked ones."""
        assert self._trainee is not None
        tracked = sorted(self._trainee.checkpoint.tracked.items())
        return [*self._trainee.modules, *(each for _, each in tracked if isinstance(each, torch.nn.Module))]

    def _weight_versions(self) -> list[int]:
        assert self._trainee is not None
        return [tensor._version for module in self._trainee.modules for tensor in _tensors(module)]

    def _held(self, loader: object) -> set[int]:
        """Return identities of objects that every savepoint contains or that the platform recreates."""
        assert self._trainee is not None
        checkpoint = self._trainee.checkpoint
        found = {id(loader), id(checkpoint), id(self._progress), *map(id, checkpoint.tracked.values())}
        for module in self._modules():
            found |= {*map(id, module.modules()), *map(id, _tensors(module))}
        return found


def _validation_of(resumed: Mapping[str, Any]) -> Validation | None:
    found = resumed.get("validation")
    return None if found is None else Validation.model_validate(found)


def _rank_state(resumed: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    ranks = resumed.get("ranks", [resumed])
    found: Mapping[str, Any] = ranks[rank]
    return found


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


class Timer:
    """Schedule of savepoints, shared by all sub-epochs of a process. Pure; times are monotonic.

    Takes one every sqrt(2 d M) seconds for a savepoint's duration d and a mean time M between losses of a
    worker, which minimizes lost work plus overhead (J. W. Young, "A first order approximation to the optimum
    checkpoint interval", CACM 17(9), 1974, equation 1).

    Args:
        interval_s: fixed interval instead; 0 disables savepoints.
        between_losses_s: M.
    """

    def __init__(
        self, interval_s: float | None = None, *, between_losses_s: float = _BETWEEN_LOSSES_S
    ) -> None:
        self._given_s, self._between_losses_s = interval_s, between_losses_s
        self.cost_s = 0.0
        """Measured or estimated seconds of the latest savepoint; 0 if unknown."""
        self.began = self._newest = 0.0

    def begin(self, now: float) -> None:
        """Start a sub-epoch."""
        self.began = self._newest = now

    def tried(self, began: float, now: float, *, is_taken: bool) -> None:
        """Record an attempt at a savepoint: the next one is due an interval from now."""
        self._newest = now
        if is_taken:
            self.cost_s = now - began

    def interval_s(self) -> float:
        """Seconds between two savepoints; infinite without any."""
        if self._given_s is not None:
            return self._given_s or math.inf
        best_s = math.sqrt(2 * self.cost_s * self._between_losses_s)
        return max(min(max(best_s, _SHORTEST_S), _LONGEST_S), _INTERVAL_PER_COST * self.cost_s)

    def is_due(self, now: float, *, share: float, batch_s: float = 0.0) -> bool:
        """True if waiting for another batch would risk more than an interval."""
        since = now - self._newest
        if since + batch_s < self.interval_s():
            return False
        if self._given_s is not None:
            return True
        return since >= _INTERVAL_PER_COST * self.cost_s and (now - self.began) / share >= _SHORT_SUB_EPOCH_S

    def fits(self, left_s: float) -> bool:
        """True if a savepoint fits into the remaining seconds."""
        return left_s >= _SPARE_S + 2 * self.cost_s

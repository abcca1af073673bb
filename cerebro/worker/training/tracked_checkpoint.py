"""User code's `checkpoint` mapping and its tracked objects, saved and restored automatically.

`sub_epoch` gives a `Checkpoint` to each call of user code; `Trainee` saves its content with the model. It writes no
files. A *tracked* object's state is in the mapping under its name, where user code would save it manually. So both ways
produce the same files, and code may switch between sub-epochs.

The learning-rate trap: an optimizer created with a new learning rate silently gets the old one back when it loads its
saved state. So the initial plain numbers of a tracked object are saved with its state. If the model's hyperparameters
change and the object is created with other numbers, the new ones are kept (`_with_changes`). The initial numbers of an
untracked optimizer are unknown: after the sub-epoch its values named like hyperparameters are checked (`_stale`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch

from cerebro import spec
from cerebro.contract.records import Hyperparameters
from cerebro.errors import SpecError
from cerebro.worker.training import schedules
from cerebro.worker.training.checkpoints.storable import storable

log = logging.getLogger(__name__)

InitialValues = dict[str, dict[str, Any]]
"""Initial plain values of tracked objects, by name and then by path in the state."""

_UNLISTED = "params"
"""Key of an optimizer group's parameter numbers, which depend on no hyperparameter."""


class Checkpoint(dict[str, Any], spec.Checkpoint):
    """A `cerebro.spec.Checkpoint`: a dict with tracked objects. Copies are plain dicts.

    Args:
        content: content from earlier sub-epochs.
        initial_values: latest initial values of tracked objects.
        changes: hyperparameters that have changed: name -> (previous value, new value).
    """

    def __init__(
        self,
        content: Mapping[str, Any] | None = None,
        *,
        initial_values: InitialValues | None = None,
        changes: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> None:
        super().__init__(content or {})
        self.initial_values: InitialValues = dict(initial_values or {})
        self.changes = dict(changes or {})
        self._tracked: dict[str, Any] = {}
        self._rates: list[schedules.Rates] = []
        """New rates of optimizers, for schedules whose length changed."""
        self.closed = ""
        """Reason why `track` is refused now; empty while it is accepted."""
        self.overwritten: set[str] = set()
        """Names of tracked objects that user code has overwritten with another value."""
        self._reader = ""
        """Name of the running method of user code that may only read; empty if none runs."""

    # --- dict methods of user code --------------------------------------------------------------------

    def __setitem__(self, name: str, value: Any) -> None:
        self._require_writable()
        if name in self._tracked:
            self.overwritten.add(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._require_writable()
        super().__delitem__(name)

    def __ior__(self, other: Any) -> Checkpoint:  # type: ignore[override, misc]
        self.update(other)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, and set it first if the name is new."""
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *values: Any, **named: Any) -> None:
        """Set several values."""
        self._require_writable()
        super().update(*values, **named)

    def pop(self, *arguments: Any) -> Any:
        """Remove a value and return it."""
        self._require_writable()
        return super().pop(*arguments)

    def popitem(self) -> tuple[str, Any]:
        """Remove the newest value and return it."""
        self._require_writable()
        return super().popitem()

    def clear(self) -> None:
        """Remove all values."""
        self._require_writable()
        super().clear()

    def _require_writable(self) -> None:
        if self._reader:
            raise SpecError(
                f"{self._reader}() writes into checkpoint, which is saved only after train(), so the value would be "
                "lost. Return a metric from test(): the next calls of train() have it in dataloader.validation"
            )

    @contextmanager
    def only_read(self, method: str) -> Iterator[None]:
        """Refuse writes while a method of the user runs.

        Raises:
            SpecError: the method changed a value in place. Other writes raise at once.
        """
        self._reader, marks = method, dict(_marks(self, ""))
        try:
            yield
            new_marks = dict(_marks(self, ""))
            if changed := [path for path in {**marks, **new_marks} if marks.get(path) != new_marks.get(path)]:
                self._reader = f"{method}() changes checkpoint{changed[0]}: {method}"
                self._require_writable()
        finally:
            self._reader = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    @property
    def tracked(self) -> Mapping[str, Any]:
        """Objects tracked in this sub-epoch, by name."""
        return self._tracked

    def track(self, **objects: Any) -> None:
        """Track objects, and restore their saved states; see `cerebro.spec.Checkpoint.track`."""
        if self.closed:
            raise SpecError(
                f"checkpoint.track() was called {self.closed}: call it before the loop over dataloader"
            )
        initial = {name: _numbers(self._state(name, value)) for name, value in objects.items()}
        for name, value in sorted(objects.items(), key=lambda each: schedules.has_length(each[1])):
            if self._tracked.get(name) is value:
                continue
            if name in self:
                self._restore(name, value, initial[name])
            self._tracked[name], self.initial_values[name] = value, initial[name]
        for rates in self._rates:
            schedules.apply(rates)  # after loading, which may have set older rates

    def _state(self, name: str, value: Any) -> Any:
        """Return the state to save of an object.

        Raises:
            SpecError: the object cannot be tracked.
        """
        if self._tracked.get(name, value) is not value:
            raise SpecError(
                f"checkpoint.track() got a second object named {name!r}: give each a name of its own"
            )
        methods = (getattr(value, method, None) for method in ("state_dict", "load_state_dict"))
        if isinstance(value, type) or not all(callable(method) for method in methods):
            raise SpecError(
                f"checkpoint.track({name}=...) got a {type(value).__module__}.{type(value).__qualname__}, expected an "
                "object with state_dict() and load_state_dict(), such as an optimizer, a scheduler or a module; put "
                f"plain values into the mapping: checkpoint[{name!r}] = ..."
            )
        state = value.state_dict()
        storable(state, f"the state_dict() of {name!r}, which checkpoint.track() got,")
        return state

    def _restore(self, name: str, value: Any, initial: Mapping[str, Any]) -> None:
        saved = self[name]
        if schedules.has_length(value) and not self._reader:
            previous, now = (
                schedules.length(numbers, are_floats_fixed=not self.changes)
                for numbers in (self.initial_values.get(name, initial), initial)
            )
            if previous != now:
                self._advance(name, value, schedules.steps_done(saved), previous, now)
                return
        if self.changes:
            previous = self.initial_values.get(name) or self._guessed(saved, initial)
            saved = _with_changes(saved, previous, initial)
        elif schedules.is_custom(value):
            # Its state holds its length, which may have changed. Its floats may follow from a restored optimizer.
            previous = self.initial_values.get(name, {})
            saved = _with_changes(saved, {path: n for path, n in previous.items() if type(n) is int}, initial)
        try:
            value.load_state_dict(saved)
        except Exception as error:
            raise SpecError(
                f"checkpoint.track({name}=...): the {type(value).__qualname__} does not take the state that was saved "
                f"under this name ({type(error).__name__}: {error}): make it as in the sub-epochs before, or give it "
                "another name"
            ) from error

    def _advance(
        self, name: str, schedule: Any, steps: int, before: Mapping[str, float], now: Mapping[str, float]
    ) -> None:
        """Make a schedule with a new length continue at its step on the new curve."""
        changed = ", ".join(
            f"{path.removeprefix('/')} from {before.get(path)} to {now.get(path)}"
            for path in sorted({**before, **now})
            if before.get(path) != now.get(path)
        )
        what = f"checkpoint.track({name}=...): the length of the {type(schedule).__qualname__} changed ({changed})"
        for known, optimizer in self._tracked.items():
            if optimizer is schedule.optimizer and known in self and known not in self._rated(schedule):
                raise SpecError(
                    f"{what}, and it was made after its optimizer was restored, so its first rate is not known. Make "
                    f"both before one call of checkpoint.track({known}={known}, {name}={name})"
                )
        try:
            self._rates.append(schedules.advance(schedule, steps))
        except Exception as error:
            raise SpecError(
                f"{what}, and it cannot continue at step {steps}: {type(error).__name__}: {error}. Make it for "
                "dataloader.total_steps, or for a fixed number of steps"
            ) from error
        log.info("%s: it continues at step %d of the new curve", what, steps)

    def _rated(self, schedule: Any) -> set[str]:
        """Return the tracked optimizers whose first rates equal the first rates of a new schedule."""
        rates = [float(rate) for rate in schedule.get_last_lr()]
        return {
            name
            for name, initial in self.initial_values.items()
            if rates == [initial.get(f"/param_groups/{number}/lr") for number in range(len(rates))]
        }

    def _guessed(self, saved: Any, created: Mapping[str, Any]) -> dict[str, Any]:
        """Guess an untracked object's initial values by name: the changed hyperparameters."""
        found = _numbers(saved)
        names = {path: path.rpartition("/")[2].removeprefix("initial_") for path in created}
        return {path: found[path] for path, name in names.items() if name in self.changes and path in found}

    def newest(self) -> dict[str, Any]:
        """Return everything to save, with current states of tracked objects, as a plain dict."""
        return {**self, **{name: value.state_dict() for name, value in self._tracked.items()}}

    def settle(self) -> None:
        """End the sub-epoch: store the states of tracked objects and drop the objects.

        Raises:
            SpecError: a hyperparameter was changed, but user code's content has the old value.
        """
        for name, (previous, now) in self.changes.items():
            values = {key: value for key, value in self.items() if key not in self._tracked}
            for where in _stale(values, name, previous, now):
                raise SpecError(
                    f"{name} was changed from {previous!r} to {now!r}, but the optimizer in checkpoint{where} still "
                    f"has {previous!r}, because load_state_dict() puts the old value back: call "
                    "checkpoint.track(optimizer=optimizer) instead of loading and saving its state_dict(), and the "
                    "new value is kept"
                )
        self.update(storable(self.newest(), "checkpoint"))  # as the next sub-epoch would read it from a file
        self._tracked.clear()
        self._rates.clear()
        self.overwritten.clear()
        self.changes.clear()
        self.closed = ""


def changes(before: Mapping[str, Any] | None, now: Hyperparameters) -> dict[str, tuple[Any, Any]]:
    """Return changed hyperparameters: name -> (before, now). Unknown earlier values are ignored."""
    return {
        name: (value, now[name])
        for name, value in (before or {}).items()
        if name in now and now[name] != value
    }


def _numbers(state: Any) -> dict[str, Any]:
    """Return a state's plain values by path, including parameter groups' tensors with one number."""
    return dict(_leaves(state, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key != _UNLISTED:
                yield from _leaves(item, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{path}/{position}")
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield path, value
    elif isinstance(value, torch.Tensor) and value.dim() == 0 and path.startswith("/param_groups/"):
        yield path, value.item()


def _with_changes(saved: Any, before: Mapping[str, Any], created: Mapping[str, Any], path: str = "") -> Any:
    """Return a saved state with new initial numbers instead of `before`. Does not change `saved`.

    A number that has moved since, such as a scheduled learning rate, changes by the same factor.
    """
    if isinstance(saved, Mapping):
        pairs = {key: _with_changes(item, before, created, f"{path}/{key}") for key, item in saved.items()}
        return pairs if type(saved) is dict else type(saved)(pairs)  # type: ignore[call-arg]
    if isinstance(saved, (list, tuple)):
        items = [_with_changes(item, before, created, f"{path}/{n}") for n, item in enumerate(saved)]
        return items if isinstance(saved, list) else tuple(items)
    if path not in before or path not in created or before[path] == created[path]:
        return saved
    value = saved.item() if isinstance(saved, torch.Tensor) else saved
    new = _moved(value, before[path], created[path])
    return torch.full_like(saved, new) if isinstance(saved, torch.Tensor) else new


def _moved(value: Any, before: Any, now: Any) -> Any:
    if value != before and before and all(type(number) is float for number in (value, before, now)):
        return value * (now / before)
    return now


def _stale(value: Any, name: str, before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield the optimizer groups in a state that still have a hyperparameter's old value."""
    if isinstance(value, Mapping):
        groups = cast("Mapping[str, Any]", value).get("param_groups")
        if isinstance(groups, list):
            for group in groups:
                held = [group[key] for key in (name, f"initial_{name}") if key in group]
                if any(_is(one, before) for one in held) and not any(_is(one, now) for one in held):
                    yield where
        for key, item in value.items():
            if key not in ("param_groups", "state"):
                yield from _stale(item, name, before, now, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _stale(item, name, before, now, f"{where}[{position}]")


def _marks(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield marks by path that differ after a change in place."""
    if isinstance(value, Mapping):
        yield path, len(value)
        for key, item in value.items():
            yield from _marks(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield path, len(value)
        for position, item in enumerate(value):
            yield from _marks(item, f"{path}[{position}]")
    else:
        yield path, (id(value), value._version) if isinstance(value, torch.Tensor) else repr(value)


def _is(value: Any, number: Any) -> bool:
    if isinstance(value, torch.Tensor):
        value = value.item() if value.dim() == 0 else None
    return bool((list(value) if isinstance(value, tuple) else value) == number)

"""Checkpoint values survive a hop exactly or are refused; views do not store the rest of a tensor."""

from __future__ import annotations

import datetime
import enum
import itertools
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cerebro.errors import SpecError
from cerebro.worker.training.checkpoints.checkpoint import State, load, save
from cerebro.worker.training.checkpoints.comparison import differences, digest
from cerebro.worker.training.checkpoints.storable import state_bytes, storable
from cerebro.worker.training.sub_epoch import restore
from cerebro.worker.training.trainee import Trainee
from tests.worker.training.test_checkpoint import assert_equal

CPU = torch.device("cpu")
S = torch.optim.lr_scheduler


def hopped(state: State, folder: Path) -> State:
    """Read a state as the next sub-epoch does."""
    return load(folder, save(folder, "u0.pt", state), CPU)


def restored(value: Any, folder: Path) -> Any:
    """Read a value of the user's mapping as the next sub-epoch does."""
    return hopped({"models": [], "checkpoint": {"x": value}}, folder)["checkpoint"]["x"]


# --- schedules -----------------------------------------------------------------------------------------


def _chained(optimizer: Any) -> Any:
    return S.ChainedScheduler([S.ConstantLR(optimizer), S.MultiStepLR(optimizer, [2, 4])])


def _sequential(optimizer: Any) -> Any:
    return S.SequentialLR(
        optimizer, [S.LinearLR(optimizer, total_iters=2), S.MultiStepLR(optimizer, [1, 2])], [3]
    )


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "multistep": lambda optimizer: S.MultiStepLR(optimizer, [2, 2, 4]),
    "step": lambda optimizer: S.StepLR(optimizer, 2),
    "exponential": lambda optimizer: S.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: S.CosineAnnealingLR(optimizer, 6),
    "restarts": lambda optimizer: S.CosineAnnealingWarmRestarts(optimizer, 2),
    "polynomial": lambda optimizer: S.PolynomialLR(optimizer, 6),
    "linear": lambda optimizer: S.LinearLR(optimizer, total_iters=4),
    "constant": S.ConstantLR,
    "onecycle": lambda optimizer: S.OneCycleLR(optimizer, 0.1, total_steps=7),
    "cyclic": lambda optimizer: S.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2),
    "lambda": lambda optimizer: S.LambdaLR(optimizer, lambda step: 0.9**step),
    "multiplicative": lambda optimizer: S.MultiplicativeLR(optimizer, lambda step: 0.9),
    "averaging": lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=3),
    "chained": _chained,
    "sequential": _sequential,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_torch_schedule_continues_after_a_hop(name: str, tmp_path: Path) -> None:
    """Six steps with a hop after the third give the rates of six uninterrupted steps."""

    def new_schedule() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        return optimizer, SCHEDULES[name](optimizer)

    def rates(optimizer: Any, schedule: Any, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            optimizer.step()
            schedule.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    expected = rates(*new_schedule(), 6)
    trainee = Trainee(modules=[torch.nn.Identity()])
    optimizer, schedule = new_schedule()
    trainee.checkpoint.track(optimizer=optimizer, schedule=schedule)
    first = rates(optimizer, schedule, 3)
    trainee.checkpoint.settle()
    after = Trainee(modules=[torch.nn.Identity()])
    restore(after, hopped(trainee.state(), tmp_path))
    optimizer, schedule = new_schedule()
    after.checkpoint.track(optimizer=optimizer, schedule=schedule)
    assert first + rates(optimizer, schedule, 3) == expected


# --- values --------------------------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**1999), max_value=2**1999)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
_keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(_keys, inner)
        | st.dictionaries(_keys, inner).map(OrderedDict)
        | st.sets(_keys)
        | st.lists(st.text()).map(Counter)
    ),
    max_leaves=12,
)


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [(_types(key), _types(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_types(item) for item in value]
    return type(value)


@settings(deadline=None, max_examples=60)
@example(value=b"")
@given(value=_values)
def test_values_are_restored_with_their_types(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Covers nested values; a model that stays in memory gets equal ones."""
    found = restored(value, tmp_path_factory.mktemp("values"))
    assert found == value
    assert _types(found) == _types(value)
    assert list(differences(found, value)) == []
    assert digest(found) == digest(value)
    assert storable(value, "x") == value


@pytest.mark.parametrize(
    "number", [np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), np.str_("a")]
)
def test_numpy_scalars_become_pythons(number: Any, tmp_path: Path) -> None:
    """A model that stays in memory gets the same type, so a replay equals the run."""
    found = restored(number, tmp_path)
    assert found == number
    assert type(found) is type(number.item())
    trainee = Trainee(modules=[torch.nn.Identity()])
    trainee.checkpoint["x"] = number
    trainee.checkpoint.settle()
    assert type(trainee.checkpoint["x"]) is type(found)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Settings:
    rate: float = 0.1


Point = namedtuple("Point", "x y")
_cycle: list[Any] = []
_cycle.append(_cycle)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(2), r"holds a numpy.ndarray.*torch.from_numpy"),
        (np.datetime64("2020-01-01"), r"holds a numpy.datetime64.*\.item\(\)"),
        (np.longdouble(1), r"holds a numpy.longdouble"),
        (Colour.RED, r"holds a .*Colour.*\.value"),
        (Level.LOW, r"holds a .*Level.*\.value"),
        (Settings(), r"holds a .*Settings.*asdict"),
        (datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), r"holds a datetime.datetime.*isoformat"),
        (datetime.date(2020, 1, 1), r"holds a datetime.date.*isoformat"),
        (datetime.timedelta(1), r"holds a datetime.timedelta.*total_seconds"),
        (defaultdict(list, a=[1]), r"holds a collections.defaultdict.*dict\(value\)"),
        (Point(1, 2), r"holds a .*Point.*tuple\(value\)"),
        (frozenset({1}), r"holds a builtins.frozenset.*set\(value\)"),
        (deque([1]), r"holds a collections.deque.*keep tensors, numbers"),
        (Fraction(1, 3), r"holds a fractions.Fraction"),
        (Path("a"), r"holds a pathlib.*str\(path\)"),
        (print, r"holds a builtins.builtin_function_or_method"),
        (2**3000, r"holds an integer of 3001 bits"),
        (torch.nn.Identity(), r"holds a torch.nn.*state_dict\(\)"),
        (_cycle, r"contains itself"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_values_that_cannot_be_stored_exactly_are_refused_by_name(
    value: Any, message: str, tmp_path: Path
) -> None:
    """The error occurs at the last step of a sub-epoch or when saving, and no file is written."""
    for place in ({"a": [1, {"b": value}]}, {"a": [1, {"b": (value,)}]}):
        with pytest.raises(SpecError, match=message):
            save(tmp_path, "u0.pt", {"models": [], "checkpoint": place})
    trainee = Trainee(modules=[torch.nn.Identity()])
    trainee.checkpoint["x"] = value
    with pytest.raises(SpecError, match=message):
        trainee.checkpoint.settle()
    assert list(tmp_path.iterdir()) == []


# --- modules -------------------------------------------------------------------------------------------


class Extra(torch.nn.Linear):
    """A module with extra state."""

    def __init__(self, extra: Any) -> None:
        super().__init__(1, 1)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (np.asarray([1]), "numpy.ndarray"),
        ({"a": [Colour.RED]}, r"\['a'\]\[0\] holds a .*Colour"),
        (lambda: 0, "builtins.function"),
        (Settings(), "Settings"),
    ],
    ids=["array", "inside", "function", "dataclass"],
)
def test_unreadable_extra_state_is_found_when_saving(extra: Any, what: str, tmp_path: Path) -> None:
    """The error has the module's number and the key; otherwise the next sub-epoch would fail in torch."""
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), Extra(extra))
    with pytest.raises(SpecError, match=rf"module 1 of create_models\(\), at '1._extra_state',.*{what}"):
        Trainee(modules=[torch.nn.Identity(), network]).save(tmp_path, "u0.pt")
    assert list(tmp_path.iterdir()) == []


class Marked(torch.Tensor):
    """A user-defined tensor class."""


def test_a_parameter_of_a_custom_class_is_found_when_saving(tmp_path: Path) -> None:
    """Loading accepts only torch's classes."""
    network = torch.nn.Linear(1, 1)
    network.weight = torch.nn.Parameter(torch.ones(1, 1).as_subclass(Marked))
    with pytest.raises(SpecError, match=r"module 0 of create_models\(\), at 'weight', holds a .*Marked"):
        Trainee(modules=[network]).save(tmp_path, "u0.pt")
    with pytest.raises(SpecError, match=r"checkpoint\['x'\] holds a .*Marked"):
        restored(torch.ones(1).as_subclass(Marked), tmp_path)


# --- views ---------------------------------------------------------------------------------------------


def test_a_view_is_stored_without_the_rest_of_its_tensor(tmp_path: Path) -> None:
    """Stores 64 rows of a 10 MB tensor."""
    tensor = torch.randn(20000, 128)
    state: State = {
        "models": [{"w": tensor[100:164]}],
        "checkpoint": {"keys": tensor[:64], "one": tensor[7, 3], "none": tensor[:0]},
    }
    reference = save(tmp_path, "u0.pt", state)
    assert reference.size < state_bytes(state) + 10_000
    assert_equal(load(tmp_path, reference, CPU), state)


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 199), st.integers(1, 200), st.integers(1, 5)), min_size=1, max_size=5
    )
)
def test_views_are_restored_with_the_same_sharing(
    cuts: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Views that share elements still share them after a hop, and all values are the same."""
    tensor = torch.arange(200.0)
    views = [tensor[start:stop:step] for start, stop, step in cuts]
    found = cast("list[torch.Tensor]", restored(views, tmp_path_factory.mktemp("cuts")))
    assert all(torch.equal(*pair) for pair in zip(found, views, strict=True))
    for (one, mine), (other, theirs) in itertools.combinations(list(zip(found, views, strict=True)), 2):
        common = set(mine.tolist()) & set(theirs.tolist())
        if common and one is not other:
            value = min(common)
            one[mine.tolist().index(value)] = -1.0
            assert other[theirs.tolist().index(value)] == -1.0
            one[mine.tolist().index(value)] = value

"""Selection of trials: only useful ones, without loss of a plan that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.trials import (
    AvailableDevices,
    DeviceKind,
    Inspection,
    KnownParallelPlan,
    ModelGroup,
    TrialOutcome,
)
from controller.sources.trials.memory import FULL, may_fit
from controller.sources.trials.selection import is_there_a_choice, trials
from controller.sources.trials.situation import Situation
from controller.sources.trials.times import lower_s

GIB = 1 << 30


def parallel_plan(
    technique: str, size: int, *, reason: str = "", device_bytes: int | None = None
) -> KnownParallelPlan:
    """A parallel plan as an inspection reports it."""
    identity = technique if size == 1 else f"{technique}-{size}"
    plan = ParallelPlan(technique=technique, size=size)
    return KnownParallelPlan(id=identity, parallel_plan=plan, reason=reason, device_bytes=device_bytes)


PARALLEL_PLANS = (
    parallel_plan("single", 1),
    parallel_plan("checkpointing", 1),
    *(parallel_plan("ddp", size) for size in (2, 4, 8)),
)


def situation(
    models: Sequence[int],
    *,
    devices: Sequence[int] = (8,),
    batches: float = 100.0,
    parallel_plans: tuple[KnownParallelPlan, ...] = PARALLEL_PLANS,
    memory: int | None = None,
    outcomes: Mapping[tuple[str, str], TrialOutcome] | None = None,
) -> Situation:
    """Return groups with these numbers of models."""
    names = [[f"m{group:02}{number:03}" for number in range(count)] for group, count in enumerate(models)]
    return Situation(
        inspection=Inspection(
            groups=tuple(
                ModelGroup(id=f"g{number:02}", models=tuple(each), parallel_plans=parallel_plans)
                for number, each in enumerate(names)
            ),
            device_kinds=(
                AvailableDevices(device=DeviceKind(kind="gpu", name="G", memory_bytes=memory), max_devices=8),
            ),
        ),
        remaining_batches={name: batches for each in names for name in each},
        devices={0: devices},
        outcomes=outcomes or {},
    )


def selected_trials(given: Situation) -> list[tuple[str, str]]:
    """Return the selected trials in order."""
    return [(trial.group.id, trial.known.id) for trial in trials(given)]


@given(models=st.integers(1, 60), devices=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6))
def test_twice_as_many_equal_models_as_devices_need_no_trial(models: int, devices: list[int]) -> None:
    """Each chain is at most half of the load; with fewer models than devices it is longer."""
    is_many = models >= 2 * sum(devices)
    given = situation([models], devices=devices)
    if is_many:
        assert not is_there_a_choice(devices, given.remaining_batches, {}, {})
        assert selected_trials(given) == []
    if models < sum(devices) and max(devices) > 1:
        assert is_there_a_choice(devices, given.remaining_batches, {}, {})
        assert selected_trials(given)


def test_trials_double_the_number_of_devices_while_it_pays() -> None:
    """First two devices, then four after a speed-up. Without one, eight remain possible, but four are tried first."""
    alone = situation([1])
    assert selected_trials(alone) == [("g00", "ddp-2")]
    good = {("g00", "ddp-2"): TrialOutcome(batch_s=0.55, is_verified=True)}
    assert selected_trials(situation([1], outcomes=good)) == [("g00", "ddp-4")]
    done = good | {("g00", "ddp-4"): TrialOutcome(batch_s=0.3, is_verified=True)}
    last = done | {("g00", "ddp-8"): TrialOutcome(batch_s=0.2, is_verified=True)}
    assert selected_trials(situation([1], outcomes=done)) == [("g00", "ddp-8")]
    assert selected_trials(situation([1], outcomes=last)) == []


def test_a_plan_with_a_wrong_gradient_is_not_tried_on_more_devices() -> None:
    """The same applies to inapplicable plans; a crash may be specific to two devices."""
    for cause, left in (("gradient", []), ("not_applicable", []), ("failure", [("g00", "ddp-4")])):
        struck = TrialOutcome.model_validate({"reason": "no", "cause": cause})
        assert selected_trials(situation([1], outcomes={("g00", "ddp-2"): struck})) == left


def test_sub_epochs_not_trials_find_out_whether_a_parallel_plan_fits() -> None:
    """A model that ran out of memory has no trial until a sub-epoch finds a plan that fits. Then trials look
    for faster plans."""
    parallel_plans = (*PARALLEL_PLANS[:2], parallel_plan("offload", 1), *PARALLEL_PLANS[2:])
    given = replace(situation([1], parallel_plans=parallel_plans), struck={("g00", "single")})
    assert selected_trials(given) == []
    found = replace(given, fits={("g00", "checkpointing")}, batch_s={"m00000": 1.0})
    assert selected_trials(found) == [("g00", "ddp-2")]
    assert selected_trials(replace(found, devices={0: (1,)})) == []


def test_only_named_or_automatic_techniques_have_trials() -> None:
    """`wanted` names techniques."""
    float8 = parallel_plan("fsdp", 2).model_copy(update={"is_automatic": False})
    given = situation([1], parallel_plans=(parallel_plan("single", 1), float8, parallel_plan("ddp", 2)))
    assert selected_trials(given) == [("g00", "ddp-2")]
    assert selected_trials(replace(given, wanted={"single", "fsdp"})) == [("g00", "fsdp-2")]


# --- No valid plan is dropped ---


@dataclass(frozen=True)
class TrueModel:
    """Actual memory of a model in bytes; `test_share` is the share of its state in the techniques' bounds."""

    state: int
    optimizer: int
    activations: int
    test_share: float

    def peak(self, known: KnownParallelPlan) -> float:
        """Return the peak memory of each device."""
        technique, size = known.parallel_plan.technique, known.parallel_plan.size
        whole = self.state + self.optimizer
        if technique == "fsdp":
            return (whole + self.activations) / size
        kept = 0.2 if technique == "checkpointing" else 1.0
        return whole + kept * self.activations / size

    def parallel_plans(self) -> tuple[KnownParallelPlan, ...]:
        """Return plans whose bounds omit the optimizer's state and more."""
        plans = []
        for technique, size in (
            ("single", 1),
            ("checkpointing", 1),
            *((t, k) for k in (2, 4, 8) for t in ("ddp", "fsdp")),
        ):
            shard = size if technique == "fsdp" else 1
            known = parallel_plan(technique, size, device_bytes=int(self.test_share * self.state / shard))
            growth = {
                "per_optimizer_byte": 1 / shard,
                "per_activation_byte": 0.0 if technique == "checkpointing" else 1 / size,
            }
            plans.append(known.model_copy(update=growth))
        return tuple(plans)


@given(
    truth=st.builds(
        TrueModel,
        state=st.integers(1, 200 * GIB),
        optimizer=st.integers(0, 200 * GIB),
        activations=st.integers(0, 200 * GIB),
        test_share=st.floats(0.5, 1.0),
    ),
    memory=st.integers(1, 400 * GIB),
    tried=st.sets(st.integers(0, 7)),
)
def test_no_parallel_plan_that_fits_is_excluded_for_memory(
    truth: TrueModel, memory: int, tried: set[int]
) -> None:
    """For any models, limits and trials, conclusions from bounds and peaks are true."""
    parallel_plans, outcomes = truth.parallel_plans(), {}
    for number in tried:
        known = parallel_plans[number]
        if truth.peak(known) <= FULL * memory:
            peak = int(truth.peak(known))
            # A checkpoint's state omits the same parts as the bounds.
            outcomes["g00", known.id] = TrialOutcome(
                batch_s=1.0, device_bytes=peak, state_bytes=truth.optimizer, is_verified=True
            )
        else:
            outcomes["g00", known.id] = TrialOutcome(reason="out of memory", cause="device_memory")
    given = situation([1], parallel_plans=parallel_plans, memory=memory, outcomes=outcomes)
    group = given.inspection.groups[0]
    for known in parallel_plans:
        if truth.peak(known) <= FULL * memory - 8:
            assert may_fit(given, group, known), known.id


# --- Times ---


@given(
    left=st.lists(st.floats(0.1, 100), min_size=1, max_size=8),
    devices=st.integers(1, 8),
)
def test_the_bound_with_one_plan_each_is_the_longest_chain_or_the_load(
    left: list[float], devices: int
) -> None:
    """The longer one counts; an additional plan never increases it."""
    parallel_plans = {f"m{number}": [(1, seconds)] for number, seconds in enumerate(left)}
    found = lower_s(parallel_plans, devices)
    assert found == pytest.approx(max(*left, sum(left) / devices), rel=1e-6)
    wider = {name: [*each, (2, each[0][1] / 2)] for name, each in parallel_plans.items()}
    assert lower_s(wider, devices) <= found * (1 + 1e-9)


@pytest.mark.parametrize(
    ("batches", "batch_s", "is_tried"),
    [(99, None, False), (100, None, True), (1e6, 1e-5, False), (100, 1.0, True)],
)
def test_with_little_training_left_there_is_no_trial(
    batches: float, batch_s: float | None, is_tried: bool
) -> None:
    """Fewer batches than a trial uses, or less time than process start-up."""
    given = situation([1], batches=batches)
    given = replace(given, batch_s={} if batch_s is None else {"m00000": batch_s})
    assert bool(selected_trials(given)) is is_tried
    assert is_there_a_choice([8], given.remaining_batches, {}, given.batch_s) is is_tried


@given(
    parallel_plans=st.dictionaries(
        st.integers(0, 9).map(str),
        st.lists(st.tuples(st.integers(1, 4), st.floats(0.01, 100)), max_size=4),
        max_size=8,
    ),
    devices=st.integers(1, 12),
)
def test_the_bound_is_the_smallest_sufficient_limit(
    parallel_plans: dict[str, list[tuple[int, float]]], devices: int
) -> None:
    """A slightly smaller limit is not enough."""

    def is_enough(limit: float) -> bool:
        cheap = [
            min((size * s for size, s in each if s <= limit), default=math.inf)
            for each in parallel_plans.values()
            if each
        ]
        return sum(cheap) <= limit * devices

    found = lower_s(parallel_plans, devices)
    assert is_enough(found * (1 + 1e-9))
    assert not found or not is_enough(found * (1 - 1e-6))

"""Trials detect wrong techniques and wrong losses, and accept right ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro import StepSpec
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.techniques import Technique
from cerebro.worker.training.ranks.gradient_weights import weighted
from tests.data.rows import write_partition
from tests.techniques.cases import TOKENS, WIDE, Case
from tests.techniques.ranks import Ranks
from tests.trial_runner.draws import KINDS, Draw, is_ruled_out, right, wrong
from tests.trial_runner.sub_epochs import TrialRequest, Wrong, spec_of, tried
from tests.trial_runner.wrong import DoubledOfParts, LastTooLarge, SlightlyTooLarge
from trial_runner.gradients import differences, mark_of
from trial_runner.train_observer import observe


@pytest.fixture(scope="module")
def ranks(processes: None) -> Iterator[Ranks]:
    """Up to three processes."""
    with Ranks() as started:
        yield started


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """46 rows."""
    folder = tmp_path_factory.mktemp("partition")
    write_partition(folder, [20, 26])
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draw", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 3))])
def test_a_wrong_gradient_is_detected(
    kind: str, draw: int, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """Covers several models, loops and ranks, with gradient clipping and dropout."""
    drawn = wrong(kind, Random(draw))
    is_caught, found = is_ruled_out(drawn, ranks, partition, tmp_path)
    assert is_caught, (drawn.label, found)


@pytest.mark.parametrize("technique", ["ddp", "fsdp"])
def test_dropout_and_clipping_do_not_rule_out_a_correct_technique(
    technique: str, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """Uses the loop of the wrong losses with a right one."""
    parallel_plan = ParallelPlan(technique=technique, size=2)
    trial_request = TrialRequest(
        spec=Wrong("mean"), parallel_plan=parallel_plan, partition=partition, root=tmp_path
    )
    outcome = ranks.run(2, tried, trial_request)[0]
    assert outcome.is_verified, outcome
    assert outcome.is_usable


class Steps(StepSpec):
    """The model and the right loss of `Wrong` by steps, with several optimizer steps in a partition."""

    accumulate, clip_norm = 2, 0.01

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return Wrong("mean").create_models(hyperparams)

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        rows = batch[1].reshape(-1, 1)
        logits = models[0](torch.sin(rows * torch.arange(1, WIDE + 1) * 0.37).float())
        return torch.nn.functional.cross_entropy(logits, rows[:, 0] % TOKENS, reduction=self.reduction)

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(models[0].parameters(), lr=0.01)


@pytest.mark.parametrize(("reduction", "is_verified"), [("mean", True), ("sum", False)])
def test_trials_verify_a_step_spec(
    reduction: str, is_verified: bool, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """Dropout, clipping and accumulation rule out no correct technique; a wrong loss is found."""
    plan = ParallelPlan(technique="ddp", size=2)
    request = TrialRequest(spec=Steps(reduction), parallel_plan=plan, partition=partition, root=tmp_path)
    outcome = ranks.run(2, tried, request)[0]
    assert (outcome.is_verified, outcome.is_usable) == (is_verified, is_verified), outcome


@pytest.mark.parametrize(
    "draw", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 20))]
)
def test_correct_techniques_are_never_ruled_out(
    draw: int, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """Covers models, optimizers, batch sizes, accumulation, clipping, schedules, dtypes and dropout seeds."""
    drawn = right(Random(draw))
    is_caught, found = is_ruled_out(drawn, ranks, partition, tmp_path)
    assert not is_caught, (drawn.label, found)
    assert found.is_verified, (drawn.label, found)
    assert found.is_usable


@pytest.mark.parametrize(
    ("technique", "is_right"), [(None, True), (SlightlyTooLarge, False)], ids=["right", "wrong"]
)
def test_a_parameter_with_a_rounding_noise_gradient_does_not_affect_the_verdict(
    technique: type[Technique] | None, is_right: bool, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """The noise tolerance is per parameter: a right technique is verified, and a 1 % error is detected."""
    parallel_plan = ParallelPlan(technique="ddp", size=2)
    is_caught, found = is_ruled_out(
        Draw(Wrong("shift"), parallel_plan, 8, technique, ""), ranks, partition, tmp_path
    )
    assert (found.is_verified, is_caught) == (is_right, not is_right), found


@pytest.mark.parametrize(
    "share",
    [
        "1e-5",
        "1e-4",
        "1e-2",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("1e-6", "5e-5", "3e-4", "1e-3")),
    ],
)
def test_a_gradient_that_is_slightly_wrong_is_never_verified(
    share: str, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """If the noise of the row order hides the error, the outcome is unverified."""
    drawn = Draw(Wrong(f"ordered {share}"), ParallelPlan(technique="ddp", size=2), 8, SlightlyTooLarge, share)
    is_caught, found = is_ruled_out(drawn, ranks, partition, tmp_path)
    assert is_caught or "depends on the order of a batch's rows" in found.unverified, found
    assert is_caught or float(share) > 5e-5, found


@pytest.mark.parametrize("noise", ["1e-4", pytest.param("1e-2", marks=pytest.mark.slow), "1"])
@pytest.mark.parametrize("technique", [None, LastTooLarge], ids=["right", "wrong"])
def test_a_wrong_gradient_of_a_small_parameter_is_never_verified(
    technique: type[Technique] | None, noise: str, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """An error of a quarter in that parameter is never verified.

    Too much noise leaves the outcome unverified, but never rules out a right technique.
    """
    drawn = Draw(Wrong(f"little 1e-3 {noise}"), ParallelPlan(technique="ddp", size=2), 8, technique, noise)
    is_caught, found = is_ruled_out(drawn, ranks, partition, tmp_path)
    is_right = technique is None
    assert (found.is_verified, is_caught) == (is_right and noise == "1e-4", not is_right and noise != "1"), (
        found
    )
    if not is_caught and not found.is_verified:
        assert found.unverified.startswith(
            "the gradient of 0/4.shift depends on the order of a batch's rows"
        ), found


@pytest.mark.parametrize(
    ("technique", "is_right"), [(None, True), (DoubledOfParts, False)], ids=["right", "wrong"]
)
def test_lower_precision_is_not_ruled_out_but_a_wrong_scale_is(
    technique: type[Technique] | None, is_right: bool, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """Its gradient differs by design, so the outcome is unverified with that reason."""
    parallel_plan = ParallelPlan(technique="fsdp", size=2, params={"precision": "bf16"})
    spec = spec_of(Case(model="gpt", dtype="float32"))
    is_caught, found = is_ruled_out(Draw(spec, parallel_plan, 8, technique, ""), ranks, partition, tmp_path)
    assert (found.is_verified, is_caught) == (False, not is_right), found
    assert found.is_usable == is_right
    assert is_right == found.unverified.startswith("it computes in another precision")


# --- marks -------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31), count=st.integers(1, 5000), relative=st.sampled_from([1e-6, 1e-3, 0.1, 1.0])
)
def test_the_difference_of_marks_approximates_the_difference_of_gradients(
    seed: int, count: int, relative: float
) -> None:
    """Marks are eight sums with random signs."""
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(count, generator=generator, dtype=torch.float64)
    change = torch.randn(count, generator=generator, dtype=torch.float64)
    other = one + change * (relative * one.norm() / change.norm())
    found = differences({"w": mark_of("w", other)}, {"w": mark_of("w", one)})
    assert relative / 20 < found["w"] < relative * 10
    assert differences({"w": mark_of("w", one)}, {"w": mark_of("w", one.clone())}) == {"w": 0.0}


@pytest.mark.parametrize("is_method", [True, False])
def test_each_way_to_call_backward_is_weighted_once(is_method: bool) -> None:
    """`Tensor.backward` and `torch.autograd.backward` are both observed."""
    layer = torch.nn.Linear(3, 1)
    with weighted(lambda: 2.0), observe([layer]):
        loss = layer(torch.ones(4, 3)).mean()
        if is_method:
            loss.backward()
        else:
            torch.autograd.backward(loss)
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[2.0, 2.0, 2.0]]

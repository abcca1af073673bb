"""Wrong techniques, and losses that are not what they are said to be, are caught; right ones are not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.ways import Way
from cerebro.techniques import Technique
from cerebro.worker.training.weights import weighted
from tests.data.rows import write_partition
from tests.techniques.cases import Case
from tests.techniques.ranks import Ranks
from tests.trial_runner.units import Asked, Blind, Forgetful, NoWeights, Wrong, spec_of, tried
from trial_runner import gradients
from trial_runner.gradients import difference, mark_of
from trial_runner.observing import observing


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Up to three processes."""
    with Ranks() as started:
        yield started


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """46 rows."""
    folder = tmp_path_factory.mktemp("partition")
    write_partition(folder, [20, 26])
    return folder


WRONG: dict[str, tuple[str, type[Technique] | None]] = {
    "no weights": ("mean", NoWeights),
    "ranks that train by themselves": ("mean", Forgetful),
    "batch normalisation over a share": ("norm", Blind),
    "a sum that is said to be a mean": ("sum", None),
    "a loss of pairs of rows": ("contrastive", None),
    "a mean over tokens without terms": ("tokens", None),
    "a schedule by the rows of a rank": ("schedule", None),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("size", [2, 3])
def test_what_computes_another_gradient_is_caught(
    name: str, size: int, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """On every number of ranks, although the user's loop clips gradients and drops out."""
    loss, technique = WRONG[name]
    asked = Asked(
        spec=Wrong(loss),
        way=Way(technique="ddp", size=size),
        partition=partition,
        root=tmp_path,
        technique=technique,
    )
    outcome = ranks.run(size, tried, asked)[0]
    assert outcome.cause == "gradient", outcome
    assert not outcome.is_usable


@pytest.mark.parametrize("technique", ["ddp", "fsdp"])
def test_dropout_and_clipping_hinder_no_right_technique(
    technique: str, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """The loop that the wrong ones were caught in, with a loss that is what it is said to be."""
    way = Way(technique=technique, size=2)
    asked = Asked(spec=Wrong("mean"), way=way, partition=partition, root=tmp_path)
    outcome = ranks.run(2, tried, asked)[0]
    assert outcome.is_verified, outcome
    assert outcome.is_usable


def case_of(random: Random) -> tuple[Case, Way, int]:
    """Any of the small training configurations, any right way, any batch size."""
    model = random.choice(["mlp", "cnn", "gpt"])
    technique = random.choice(["ddp", "fsdp", "checkpointing"])
    size = 1 if technique == "checkpointing" else random.choice([2, 3])
    batch_size = random.randint(max(size, 2), 12)
    case = Case(
        model=model,
        depth=random.choice([1, 2, 3]) if technique == "ddp" else 2,
        optimizer=random.choice(["SGD", "Adam", "AdamW"]),
        dtype=random.choice(["float32", "float64"]),
        batch_size=batch_size,
        accumulate=random.choice([1, 2]),
        clip=random.choice([0.0, 0.5]),
        schedule=random.choice([False, True]),
        two=random.choice([False, True]) if model != "gpt" else False,
        average=random.choice([False, True]),
    )
    processes = "one" if technique == "checkpointing" else "ranks"
    return (
        case,
        Way.model_validate({"technique": technique, "size": size, "processes": processes}),
        batch_size,
    )


@pytest.mark.parametrize(
    "draw", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 200))]
)
def test_right_techniques_are_never_struck_off(
    draw: int, ranks: Ranks, partition: Path, tmp_path: Path
) -> None:
    """Over models, optimizers, batch sizes, accumulation, clipping, schedules and types."""
    case, way, batch_size = case_of(Random(draw))
    asked = Asked(spec=spec_of(case), way=way, partition=partition, root=tmp_path, batch_size=batch_size)
    outcome = ranks.run(way.size, tried, asked)[0] if way.size > 1 else tried(None, asked)
    assert outcome.is_verified, (case, way, outcome)
    assert outcome.is_usable


# --- marks -------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31), count=st.integers(1, 5000), relative=st.sampled_from([1e-6, 1e-3, 0.1, 1.0])
)
def test_the_difference_of_two_marks_is_that_of_the_gradients_within_a_factor(
    seed: int, count: int, relative: float
) -> None:
    """Of eight sums of random signs; equal gradients are equal."""
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(count, generator=generator, dtype=torch.float64)
    change = torch.randn(count, generator=generator, dtype=torch.float64)
    other = one + change * (relative * one.norm() / change.norm())
    found, _ = difference({"w": mark_of("w", other)}, {"w": mark_of("w", one)})
    assert relative / 20 < found < relative * 10
    assert difference({"w": mark_of("w", one)}, {"w": mark_of("w", one.clone())}) == (0.0, "")


def test_a_large_gradient_is_looked_at_in_slices_and_comes_out_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is beyond the first slice counts."""
    one = torch.ones(305)
    whole = mark_of("w", one)
    monkeypatch.setattr(gradients, "_SLICE", 100)
    assert mark_of("w", one).sums == pytest.approx(whole.sums)
    other = one.clone()
    other[-1] = 1000.0
    found, which = difference({"w": mark_of("w", other)}, {"w": mark_of("w", one)})
    assert which == "w"
    assert found > 0.1
    assert mark_of("w", one).norm == pytest.approx(math.sqrt(one.numel()))


def test_a_gradient_that_is_not_there_differs_from_zeros() -> None:
    """An optimizer passes over the one and decays by the other."""
    zeros = mark_of("w", torch.zeros(3))
    one = mark_of("v", torch.ones(3))
    assert difference({"w": None, "v": one}, {"w": zeros, "v": one})[0] == math.inf
    assert difference({"v": one}, {"w": zeros, "v": one})[0] == math.inf
    assert difference({"w": None, "v": one}, {"w": None, "v": one}) == (0.0, "")


@pytest.mark.parametrize("is_method", [True, False])
def test_a_backward_pass_is_weighted_once_however_user_code_calls_it(is_method: bool) -> None:
    """Seen from outside as without."""
    layer = torch.nn.Linear(3, 1)
    with weighted(lambda: 2.0), observing([layer]):
        loss = layer(torch.ones(4, 3)).mean()
        if is_method:
            loss.backward()
        else:
            torch.autograd.backward(loss)
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[2.0, 2.0, 2.0]]

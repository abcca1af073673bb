"""Lower precision on request trains to slightly different results and keeps float32 weights."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.errors import NotApplicableError
from cerebro.techniques.float8 import to_float8
from cerebro.techniques.ranks import Alone
from tests.techniques.cases import Case, chain, content, distance, threads
from tests.techniques.ranks import Ranks

BF16 = [
    ParallelPlan(technique="fsdp", size=2, params={"precision": "bf16"}),
    ParallelPlan(technique="fsdp", size=3, params={"precision": "bf16", "reshard": False}),
    ParallelPlan(technique="offload", params={"precision": "bf16"}),
]


has_torchao = find_spec("torchao") is not None
needs_torchao = pytest.mark.skipif(
    not has_torchao and not os.environ.get("CI"), reason="torchao is not installed: pip install torchao"
)
FLOAT8 = [
    ParallelPlan(technique="fsdp", size=2, params={"precision": "float8-emulated"}),
    ParallelPlan(technique="offload", params={"precision": "float8-emulated", "activations": True}),
]
CHOICES = [
    *((BF16[0], model) for model in ("mlp", "cnn", "gpt")),
    *((parallel_plan, "gpt") for parallel_plan in BF16[1:]),
    *(pytest.param(parallel_plan, "wide", marks=needs_torchao) for parallel_plan in FLOAT8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "model"), CHOICES, ids=lambda each: getattr(each, "label", each))
def test_lower_precision_gives_similar_results(
    model: str, chosen: ParallelPlan, partition: Path, tmp_path: Path, ranks: Ranks
) -> None:
    """Losses fall as in float32.

    The weights differ by more than summation order explains and by less than training; the checkpoint has the
    usual format.
    """
    case = Case(model=model, batch_size=8, dtype="float32", optimizer="SGD")
    with threads(1):
        first, _ = chain([None], case, partition, tmp_path, ranks)
        expected, exact = chain([None] * 4, case, partition, tmp_path, ranks)
        found, metrics = chain([chosen] * 4, case, partition, tmp_path, ranks)
        single, _ = chain([None, None, None, SINGLE], case, partition, tmp_path, ranks)
    start, whole, brief = (content(tmp_path, each) for each in (first, expected, found))
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert metrics[-1]["loss"] == pytest.approx(exact[-1]["loss"], rel=0.02)
    assert 1e-5 < distance(brief, whole) < distance(start, whole)
    assert distance(content(tmp_path, single), whole) < 1e-5
    assert found.size == expected.size
    assert {tensor.dtype for state in brief["models"] for tensor in state.values()} == {torch.float32}


@pytest.mark.slow
@needs_torchao
def test_float8_and_bfloat16_give_different_results(partition: Path, tmp_path: Path, ranks: Ranks) -> None:
    """Only its matrix products differ."""
    case = Case(model="wide", batch_size=8, dtype="float32", optimizer="SGD")
    with threads(1):
        brief, _ = chain([BF16[0]], case, partition, tmp_path, ranks)
        least, _ = chain([FLOAT8[0]], case, partition, tmp_path, ranks)
    assert 1e-5 < distance(content(tmp_path, least), content(tmp_path, brief)) < 0.5


@pytest.mark.slow
@needs_torchao
@pytest.mark.parametrize(
    ("model", "precision", "says"),
    [
        ("mlp", "float8-emulated", "rows and columns that 16 divides"),
        ("wide", "float8", "float8 takes a GPU of compute capability 8.9 or later; cpu has 0.0"),
    ],
)
def test_an_unsupported_float8_model_states_the_reason(
    model: str, precision: str, says: str, partition: Path, tmp_path: Path, ranks: Ranks
) -> None:
    """The device or all layers may lack support."""
    case, parallel_plan = (
        Case(model=model, dtype="float32"),
        ParallelPlan(technique="offload", params={"precision": precision}),
    )
    with pytest.raises(NotApplicableError, match=says):
        chain([parallel_plan], case, partition, tmp_path, ranks)


class Halved(nn.Linear):
    """A subclass that computes something else than a linear layer."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return super().forward(given) / 2


@needs_torchao
@pytest.mark.parametrize("mark", ["subclass", "forward", "hook", "backward hook", "attention", ""])
def test_float8_converts_plain_linear_layers_only(mark: str) -> None:
    """Other layers remain unchanged, and plain linear layers next to them are converted."""
    layer, plain = (Halved if mark == "subclass" else nn.Linear)(32, 32), nn.Linear(32, 32)
    held: nn.Module = layer
    if mark == "forward":
        layer.forward = lambda input: input  # type: ignore[method-assign]
    elif mark == "hook":
        layer.register_forward_hook(lambda *_: None)
    elif mark == "backward hook":
        layer.register_full_backward_hook(lambda *_: None)
    elif mark == "attention":
        held = nn.MultiheadAttention(32, 2)
        held.out_proj = layer  # type: ignore[assignment]
    model = nn.Sequential(held, plain)
    to_float8([model], Alone(("cpu",)), is_emulated=True)
    assert (layer in list(model.modules())) == bool(mark)
    assert plain not in list(model.modules())
    assert model[-1].weight is plain.weight


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [BF16[0], pytest.param(FLOAT8[0], marks=needs_torchao)], ids=lambda each: each.label
)
def test_a_sub_epoch_in_lower_precision_hops_like_any_other(
    chosen: ParallelPlan, partition: Path, tmp_path: Path, ranks: Ranks
) -> None:
    """A sub-epoch on one device precedes and follows it, with the optimizer's state."""
    case = Case(model="wide", batch_size=9, dtype="float32")
    with threads(1):
        expected, _ = chain([None, None, None], case, partition, tmp_path, ranks)
        found, _ = chain([SINGLE, chosen, SINGLE], case, partition, tmp_path, ranks)
    assert 1e-6 < distance(content(tmp_path, found), content(tmp_path, expected)) < 0.2
    assert found.size == expected.size

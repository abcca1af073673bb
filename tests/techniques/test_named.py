"""Techniques by name, their parameters and reasons not to apply, without torch."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.parallel_plans import ParallelPlan, TechniqueChoice
from cerebro.errors import SpecError
from cerebro.techniques import (
    Checkpointing,
    Ddp,
    DeviceSet,
    Fsdp,
    Group,
    Hints,
    ModelFacts,
    Offload,
    Params,
    Pipeline,
    Single,
    Technique,
    Tensor,
    resolve,
)
from cerebro.techniques.named import KINDS

GIB = 2**30


def model(**given: Any) -> ModelFacts:
    facts: dict[str, Any] = {
        "signature": "s",
        "param_bytes": 4 * GIB,
        "trainable_bytes": 4 * GIB,
        "block_bytes": GIB // 8,
        "batch_size": 8,
        "layers": {"Block": 24},
        "stages": 26,
        "splits": (1024, 4096),
    }
    return ModelFacts(**{**facts, **given})


class UserTechnique(Technique):
    """A user's technique with arbitrary parameters."""

    name = "own"

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        return ""

    def prepare(self, modules: list[Any], group: Group, params: Params, hints: Hints) -> None: ...


def test_a_name_a_choice_and_a_parallel_plan_resolve_to_a_technique() -> None:
    """A choice keeps the user's fixed parameters, and a user's technique is decoded."""
    assert isinstance(resolve("ddp"), Ddp)
    choice = TechniqueChoice(name="fsdp", params={"reshard": False})
    assert resolve(choice).fixed == {"reshard": False}
    assert isinstance(resolve(ParallelPlan(technique="pipeline", size=2, params={"parts": 4})), Pipeline)
    sha = "ab" * 32
    technique = resolve(
        TechniqueChoice(name="own", code=sha, params={"x": [1]}), {sha: UserTechnique}.__getitem__
    )
    assert isinstance(technique, UserTechnique)
    assert technique.fixed == {"x": [1]}
    assert isinstance(
        resolve(ParallelPlan(technique="own", code=sha), {sha: UserTechnique()}.__getitem__), UserTechnique
    )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("dpp", "no technique 'dpp'; use single, checkpointing, offload, ddp, fsdp, tensor, pipeline"),
        (
            ParallelPlan(technique="ddp", params={"reshard": True}),
            "'ddp' has no parameter 'reshard': it has unused_",
        ),
        (ParallelPlan(technique="single", params={"x": 1}), "'single' has no parameter 'x': it has none"),
        (
            TechniqueChoice(name="fsdp", params={"precision": "fp4"}),
            "precision='fp4', expected one of 'bf16', 'float8', 'float8-emulated'",
        ),
        (TechniqueChoice(name="fsdp", params={"reshard": 1}), "reshard=1, expected one of True, False"),
        (TechniqueChoice(name="own", code="ab" * 32), "'own' is user code, which is not opened here"),
    ],
)
def test_an_unknown_technique_is_refused_with_the_valid_names(
    named: str | ParallelPlan | TechniqueChoice, message: str
) -> None:
    """The message lists the existing names."""
    with pytest.raises(SpecError, match=message):
        resolve(named)


@pytest.mark.parametrize(
    ("technique", "facts", "size", "reason"),
    [
        (Single(), {}, 2, "it uses one device, not 2"),
        (Single(), {"optimizer_bytes": 8 * GIB}, 1, "takes 16.0 GiB of a device, which has 12.0 GiB"),
        (Checkpointing(), {"layers": {}}, 1, r"no repeated block; name a class .* in Hints\(blocks"),
        (Offload(), {"optimizer_bytes": 60 * GIB}, 1, "68.0 GiB of the host's memory, which has 64.0 GiB"),
        (Offload(checkpointing=True), {"layers": {}}, 1, "no repeated block"),
        (Ddp(), {}, 1, "there is one device"),
        (Ddp(), {"batch_size": 3}, 4, "batch_size is 3, less than the 4 devices"),
        (Ddp(), {"optimizer_bytes": 8 * GIB}, 2, "takes 20.0 GiB of a device"),
        (Fsdp(), {"param_bytes": 20 * GIB, "trainable_bytes": 20 * GIB}, 2, "GiB of a device"),
        (Tensor(), {"splits": ()}, 2, r"there is no tensor plan; .*Hints\(tensor_plan"),
        (Tensor(), {}, 3, "1024 columns or rows of a matrix cannot be divided between 3 devices"),
        (Tensor(), {"num_modules": 2}, 2, "returned 2 modules with parameters: it takes one"),
        (Pipeline(), {"stages": 0}, 2, r"not known to be a sequence: .*Hints\(stages"),
        (Pipeline(), {"stages": 3}, 4, "3 stages for 4 devices"),
        (Pipeline(), {"coupled": "norm (BatchNorm2d)"}, 2, r"norm \(BatchNorm2d\) computes over all rows"),
    ],
)
def test_an_inapplicable_technique_states_the_reason(
    technique: Technique, facts: dict[str, Any], size: int, reason: str
) -> None:
    """The same technique applies to a usual model."""
    import re

    place = DeviceSet(size=size, kind="gpu", memory_bytes=12 * GIB, host_bytes=64 * GIB)
    params = technique.considered(model(**facts), place)[0]
    assert re.search(reason, technique.is_applicable(model(**facts), place, params))
    other = DeviceSet(size=max(technique.least, 1), kind="gpu", memory_bytes=12 * GIB, host_bytes=64 * GIB)
    assert technique.is_applicable(model(), other, params) == ""


@pytest.mark.parametrize(("kind", "size"), [(Fsdp, 2), (Offload, 1)])
def test_float8_needs_a_gpu_unless_emulated(kind: type[Technique], size: int) -> None:
    """CPUs can emulate it, and the reason says so."""
    params = {"precision": "float8"}
    assert "compute capability 8.9" in kind().is_applicable(model(), DeviceSet(size=size), params)
    assert kind().is_applicable(model(), DeviceSet(size=size, kind="gpu"), params) == ""
    assert kind().is_applicable(model(), DeviceSet(size=size), {"precision": "float8-emulated"}) == ""


def test_all_considered_parameters_include_the_users_fixed_ones() -> None:
    """Duplicates are removed, and lower precision is never considered by default."""
    place = DeviceSet(size=2)
    fixed = Fsdp(reshard=False).considered(model(), place)
    assert fixed == [{"reshard": False}, {"checkpointing": True, "reshard": False}]
    assert Fsdp(checkpointing=True).considered(model(), place) == [{"checkpointing": True}]
    for technique in (kind() for kind in KINDS.values()):
        for params in technique.considered(model(), place):
            assert technique.is_exact(params)
            assert technique.checked(params) == params
    assert not Fsdp().is_exact({"precision": "bf16"})

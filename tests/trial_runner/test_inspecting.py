"""An inspection groups equivalent models and lists each group's parallel plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan, TechniqueChoice
from cerebro.contract.tasks.bodies import InspectTask
from cerebro.contract.trials import AvailableDevices, DeviceKind, Inspection
from cerebro.spec import Hints, SubEpochSpec
from cerebro.techniques import DeviceSet, Memory, ModelFacts, Params, Technique
from cerebro.worker.training.facts import create_on_meta, facts_of
from tests.state.stories import SHA
from trial_runner.inspection import grouped, inspect
from trial_runner.known_parallel_plans import Offer, cache_key, known_parallel_plans

CPU = DeviceKind(kind="cpu", name="1 core", host_bytes=4 << 30)
GPU = DeviceKind(kind="gpu", name="G", memory_bytes=8 << 30, host_bytes=64 << 30)


class Spec(SubEpochSpec):
    """An MLP configured by its hyperparameters."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        if hyperparams.get("broken"):
            raise RuntimeError("no such model")
        width = hyperparams.get("width", 8)
        layers = [nn.Linear(width, width, bias=hyperparams.get("bias", True)) for _ in range(2)]
        if hyperparams.get("looks"):
            layers[0].weight.sum().item()  # raises on the meta device
        drop = nn.Dropout(hyperparams.get("dropout", 0.1))
        sequential = nn.Sequential(*layers, drop, nn.Linear(width, 1))
        sequential[0].weight.requires_grad_(not hyperparams.get("frozen", False))
        return [sequential.to(getattr(torch, hyperparams.get("dtype", "float32")))]


def task(models: Mapping[str, Any], **fields: Any) -> InspectTask:
    """To inspect these models."""
    given = {
        "key": "fit-1/inspect",
        "experiment": "one",
        "run": "fit-1",
        "code": SHA,
        "dataset": "d",
        "seed": 0,
        "models": dict(models),
        "device_kinds": (AvailableDevices(device=CPU, max_devices=2),),
    }
    return InspectTask.model_validate({**given, **fields})


BASE: dict[str, Any] = {"batch_size": 8, "lr": 0.1}


@given(
    change=st.sampled_from(
        [
            {"lr": 0.2},
            {"learning_rate": 1},
            {"weight_decay": 0.1},
            {"momentum": 0.9},
            {"betas": [0.9, 0.99]},
            {"warmup_steps": 10},
            {"seed": 7},
            {"dropout": 0.5},
        ]
    )
)
def test_models_with_harmless_differences_share_a_group(change: dict[str, Any]) -> None:
    """One trial covers all learning rates, weight decays, seeds and dropout rates."""
    (group,) = grouped(Spec(), {"m00": BASE, "m01": {**BASE, **change}}, seed=0)
    assert group.models == ["m00", "m01"]


@pytest.mark.parametrize(
    "change",
    [
        {"width": 16},
        {"batch_size": 16},
        {"bias": False},
        {"frozen": True},
        {"dtype": "float64"},
        {"steps": 2},
    ],
)
def test_models_with_relevant_differences_have_separate_groups(change: dict[str, Any]) -> None:
    """Shapes, dtypes, trained parameters, the batch size and unknown hyperparameters all matter."""
    models = {"m00": BASE, "m01": {**BASE, **change}}
    assert [group.models for group in grouped(Spec(), models, seed=0)] == [["m00"], ["m01"]]


def test_models_are_built_on_meta_or_on_the_cpu_if_code_reads_values() -> None:
    """Both ways find the same facts."""
    plain = create_on_meta(Spec(), {**BASE, "width": 10_000}, seed=0, model="m00")
    assert {parameter.device.type for parameter in plain.modules[0].parameters()} == {"meta"}
    looking = create_on_meta(Spec(), {**BASE, "looks": True}, seed=0, model="m00")
    assert {parameter.device.type for parameter in looking.modules[0].parameters()} == {"cpu"}
    expected = create_on_meta(Spec(), BASE, seed=0, model="m00")
    assert facts_of(looking.modules, BASE) == facts_of(expected.modules, BASE)


def test_an_inspection_lists_parallel_plans_and_reasons_for_each_group() -> None:
    """A model that fails to build is reported with its error, and other groups are still inspected."""
    models = {"m00": BASE, "m01": {**BASE, "broken": 1}, "m02": {**BASE, "batch_size": 1}}
    found = inspect(Spec(), task(models))
    assert Inspection.model_validate_json(found.model_dump_json()) == found
    first, broken, small = found.groups
    assert first.models == ("m00",)
    assert first.param_bytes == 4 * (2 * (64 + 8) + 9)
    parallel_plans = {known.id: known for known in first.parallel_plans}
    assert parallel_plans["single"].parallel_plan == SINGLE
    assert parallel_plans["ddp-2"].parallel_plan.size == 2
    assert not parallel_plans["single"].reason
    assert not parallel_plans["ddp-2"].reason
    assert (parallel_plans["ddp-2"].device_bytes or 0) >= first.param_bytes
    assert "no such model" in broken.problem
    assert "batch_size is 1" in {known.id: known for known in small.parallel_plans}["ddp-2"].reason
    assert found.group_of("m02") == small


class Halved(Technique):
    """A technique that splits all tensors over its devices."""

    name = "halved"
    parameters = None

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> tuple[Params, ...]:
        return ({}, {"more": True})

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        return "not with four" if devices.size == 4 else ""

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        more = 2 * (facts.optimizer_bytes or 0) + (facts.activation_bytes or 0)
        return Memory(device=(facts.param_bytes + more) // devices.size)

    def prepare(self, modules: Any, group: Any, params: Params, hints: Hints) -> None:
        raise NotImplementedError


def test_each_parallel_plan_and_device_kind_has_a_unique_id() -> None:
    """The id has the technique, variant, size and device kind; the technique estimates the memory."""
    facts = ModelFacts(signature="s", param_bytes=100, trainable_bytes=100)
    places = (AvailableDevices(device=CPU, max_devices=2), AvailableDevices(device=GPU, max_devices=4))
    offer = Offer(Halved(), TechniqueChoice(name="halved"))
    found = known_parallel_plans(facts, [offer], places)
    names = ["halved", "halved.1", "halved-2", "halved.1-2"]
    later = ["halved@1", "halved.1@1", "halved-2@1", "halved.1-2@1", "halved-4@1"]
    assert [known.id for known in found] == names + later
    assert found[-1].reason == "not with four"
    two = found[2]
    assert (two.device_bytes, two.per_optimizer_byte, two.per_activation_byte) == (50, 1.0, 0.5)


_PARTS: list[tuple[str, ParallelPlan, DeviceKind, dict[str, str]]] = [
    ("other", ParallelPlan(technique="ddp", size=2), GPU, {"torch": "2"}),
    ("s", ParallelPlan(technique="fsdp", size=2), GPU, {"torch": "2"}),
    ("s", ParallelPlan(technique="ddp", size=4), GPU, {"torch": "2"}),
    ("s", ParallelPlan(technique="ddp", size=2, version=2), GPU, {"torch": "2"}),
    ("s", ParallelPlan(technique="ddp", size=2, params={"a": 1}), GPU, {"torch": "2"}),
    ("s", ParallelPlan(technique="ddp", size=2), CPU, {"torch": "2"}),
    ("s", ParallelPlan(technique="ddp", size=2), GPU.model_copy(update={"memory_bytes": 1}), {"torch": "2"}),
    ("s", ParallelPlan(technique="ddp", size=2), GPU, {"torch": "3"}),
    ("s", ParallelPlan(technique="ddp", size=2), GPU, {"torch": "2", "spec": "x"}),
]


@pytest.mark.parametrize("parts", _PARTS)
def test_the_cache_key_of_a_trial_depends_on_each_input(
    parts: tuple[str, ParallelPlan, DeviceKind, dict[str, str]],
) -> None:
    base = ("s", ParallelPlan(technique="ddp", size=2), GPU, {"torch": "2"})
    assert cache_key(*parts) != cache_key(*base) == cache_key(*base)


def test_the_module_of_parallel_plans_needs_no_torch() -> None:
    source = Path(known_parallel_plans.__code__.co_filename).read_text()
    assert "import torch" not in source

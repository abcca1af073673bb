"""Precision, compilation and averaged weights do what their names say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cerebro.steps.ema import averaged
from cerebro.worker.training.checkpoints.comparison import differences, trained
from cerebro.worker.training.sub_epoch import predicting
from tests.steps.training import BASE, Hopping, Loop, Steps


class Recording(Steps):
    """Records the dtypes of logits."""

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        with recorded(models[0]) as dtypes:
            returned = super().training_step(models, batch, hyperparams)
        seen.update(dtypes)
        return returned

    def prediction_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        return {"logits": models[0](batch[0])}


seen: set[torch.dtype] = set()


@contextmanager
def recorded(model: torch.nn.Module) -> Iterator[set[torch.dtype]]:
    dtypes: set[torch.dtype] = set()
    handle = model.register_forward_hook(lambda module, inputs, outputs: dtypes.add(outputs.dtype))
    yield dtypes
    handle.remove()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_mixed_precision_computes_in_half_and_keeps_float32_weights(
    precision: str, dtype: torch.dtype, partitions: list[Path]
) -> None:
    """The result is close to full precision; predictions are float32, which tables can store."""
    seen.clear()
    hopping = Hopping(Recording(), partitions, precision=precision)
    state = hopping.train()
    assert seen == {dtype}
    assert {weight.dtype for weight in state["models"][0].values()} == {torch.float32}
    assert ("scaler" in state["checkpoint"]) == (precision == "fp16")
    expected = Hopping(Loop(), partitions).train()
    limit = 0.0 if precision == "float32" else 0.02
    assert not list(differences(state["models"], expected["models"], tolerance=limit))
    trainee = hopping.trainee(state)
    with predicting(hopping.spec, trainee, hopping.in_order(), hopping.hyperparams, seed=0) as batches:
        assert {each["logits"].dtype for each in batches} == {torch.float32}  # type: ignore[attr-defined]


class Overflowing(Steps):
    """Its gradients overflow float16 with the scaler's first scale, 65536."""

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        returned = super().training_step(models, batch, hyperparams)
        return {"loss": returned["loss"] * 1e4}


def test_an_overflow_in_fp16_skips_optimizer_and_schedule(partitions: list[Path]) -> None:
    """The scaler lowers its scale until a step succeeds."""
    state = Hopping(Overflowing(), partitions, precision="fp16").train()
    scale, steps = state["checkpoint"]["scaler"]["scale"], 24
    skipped = round(math.log2(65536 / scale))
    assert 0 < skipped < steps
    assert int(state["checkpoint"]["optimizer"]["state"][0]["step"]) == steps - skipped
    assert state["checkpoint"]["scheduler"]["last_epoch"] == steps - skipped


@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"precision": "bf16"}, {"ema": 0.9}], ids=str)
@pytest.mark.parametrize("stop", [1, 4])
def test_a_savepoint_contains_scaler_and_average(
    options: dict[str, Any], stop: int, partitions: list[Path]
) -> None:
    stopped = Hopping(Steps(), partitions, stop=stop, network="cnn", accumulate=3, clip_norm=0.1, **options)
    undisturbed = Hopping(Steps(), partitions, network="cnn", accumulate=3, clip_norm=0.1, **options)
    assert not list(differences(trained(stopped.train()), trained(undisturbed.train())))
    assert stopped.saved_batches == [stop] * 4


@pytest.mark.slow
@pytest.mark.processes
def test_compiled_modules_train_nearly_the_same_weights(
    partitions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler has seen the module, and the checkpoint has the module's own names."""
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # no pool that outlives the test
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    compiled = Hopping(Steps(), partitions, compile=True).train()
    assert counters["stats"]["unique_graphs"] > before
    expected = Hopping(Steps(), partitions).train()
    assert not list(differences(compiled["models"], expected["models"], tolerance=1e-4))


# --- averaged weights ---------------------------------------------------------------------------------------


class Averaging(Steps):
    """Also averages by torch's own class, which it keeps on the class, for one process."""

    reference: AveragedModel

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        optimizer, scheduler = super().configure_optimizers(models, hyperparams)
        optimizer.register_step_post_hook(lambda *_: self.reference.update_parameters(models[0]))
        return optimizer, scheduler


def test_averaged_weights_equal_those_of_torch(partitions: list[Path]) -> None:
    """Over four sub-epochs with hops, to the bit; the trained weights are the same as without an average."""
    hopping = Hopping(Averaging(), partitions, ema=0.9)
    average = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]  # torch has no types here
    Averaging.reference = AveragedModel(hopping.trainee(None).modules[0], multi_avg_fn=average)
    state = hopping.train()
    expected = dict(Averaging.reference.module.named_parameters())
    assert state["checkpoint"]["ema"].keys() == {f"0/{name}" for name in expected}
    for name, weight in expected.items():
        assert torch.equal(state["checkpoint"]["ema"][f"0/{name}"], weight)
    assert not list(differences(state["models"], Hopping(Steps(), partitions).train()["models"]))


def test_a_parameter_of_two_modules_gets_its_trained_weights_back() -> None:
    """It has two names, so it is replaced twice."""
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight.detach().clone()
    averages = {f"{number}/weight": torch.zeros(2, 2) for number in range(2)}
    with averaged(Steps(), [layer, layer], {"ema": averages}, {"ema": 0.9, **BASE}):
        assert not layer.weight.any()
    assert torch.equal(layer.weight, weight)


def test_validation_and_prediction_use_the_averaged_weights(partitions: list[Path]) -> None:
    """Training continues with the trained weights afterwards."""
    hopping = Hopping(Recording(), partitions, ema=0.99)
    state = hopping.train()
    trainee = hopping.trainee(state)
    raw = {name: weight.clone() for name, weight in trainee.modules[0].named_parameters()}
    with predicting(hopping.spec, trainee, hopping.in_order(), hopping.hyperparams, seed=0) as batches:
        found = torch.cat([each["logits"] for each in batches])  # type: ignore[attr-defined]
    assert all(torch.equal(weight, raw[name]) for name, weight in trainee.modules[0].named_parameters())
    model = hopping.trainee(state).modules[0].eval()
    model.load_state_dict(
        {name.removeprefix("0/"): weight for name, weight in state["checkpoint"]["ema"].items()}
    )
    pictures = torch.cat([pictures for pictures, _ in hopping.in_order()])
    labels = torch.cat([labels for _, labels in hopping.in_order()])
    torch.testing.assert_close(found, model(pictures))
    accuracy = float((model(pictures).argmax(1) == labels).float().mean())
    assert hopping.evaluate(state) == pytest.approx({"accuracy": accuracy})
    without = Hopping(Steps(), partitions)
    assert without.evaluate(state) != hopping.evaluate(state)

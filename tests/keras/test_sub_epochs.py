"""Keras sub-epochs keep the guarantees of torch sub-epochs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.mapped import MappedRows
from cerebro.data.shards import write_rows
from cerebro.errors import NotApplicableError, SpecError
from cerebro.ragged_rows import ragged
from cerebro.spec import Hints, Metrics
from cerebro.techniques.named import resolve
from cerebro.techniques.ranks import Alone
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.frozen import LEAST_BYTES
from cerebro.worker.training.facts import facts_of
from cerebro.worker.training.frameworks import user_models
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.predictions import write_predictions
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.seeds import seed_everything, sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, evaluate, predicting, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee
from tests.keras.models import BACKEND, Net, require_keras
from tests.worker.training.resuming import BATCHES, CPU, ROWS, SIZE, SubEpoch
from tests.worker.training.test_checkpoint import assert_equal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    require_keras(BACKEND)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> MappedRows:
    folder = tmp_path_factory.mktemp("rows")
    drawn = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    write_rows(folder, [(row, int(row.sum() > 0)) for row in drawn], Source(fingerprint="f", metadata="m"))
    return MappedRows.open((folder,))


def sub_epoch(rows: MappedRows, folder: Path, start: State | None = None) -> SubEpoch:
    folder.mkdir(exist_ok=True)
    return SubEpoch(rows=rows, folder=folder, spec=Net(), start=start)


def loader(rows: MappedRows) -> InstrumentedLoader:
    return InstrumentedLoader(PartitionLoader(rows, batch_size=SIZE, seed=None))


def test_a_chain_of_sub_epochs_is_reproducible_bit_for_bit(rows: MappedRows, tmp_path: Path) -> None:
    """Across files and new models: weights, momenta, seed generators and the schedule's steps."""
    states: list[Any] = []
    for place in ("one", "other"):
        state = None
        for number in range(2):
            state = sub_epoch(rows, tmp_path / place, state).attempt()
            assert state is not None
            reference = checkpoints.save(tmp_path / place, f"{number}.pt", state)
            state = checkpoints.load(tmp_path / place, reference, "cpu")
        states.append(state)
    assert_equal(states[0], states[1])
    assert int(states[0]["checkpoint"]["optimizer"]["slots"][0]) == 2 * BATCHES


def test_a_sub_epoch_in_a_used_model_equals_one_in_a_new_model(rows: MappedRows, tmp_path: Path) -> None:
    """As in a replay: a model has no state outside its checkpoint."""
    first = sub_epoch(rows, tmp_path / "a").attempt()
    kept = copy.deepcopy(first)
    assert_equal(
        sub_epoch(rows, tmp_path / "b", first).attempt(), sub_epoch(rows, tmp_path / "c", kept).attempt()
    )


@pytest.mark.parametrize("batch", [1, 7])
def test_a_sub_epoch_resumes_from_a_savepoint(rows: MappedRows, tmp_path: Path, batch: int) -> None:
    """In a new model, with the same bits and the metrics of all batches."""
    whole = sub_epoch(rows, tmp_path / "whole")
    state = whole.attempt()
    parts = sub_epoch(rows, tmp_path / "parts")
    assert parts.attempt(saves=[batch], stop=batch) is None
    assert parts.taken == [batch]
    assert_equal(parts.attempt(), state)
    assert parts.metrics == whole.metrics
    assert set(whole.metrics) == {"loss", "accuracy"}


def test_a_changed_learning_rate_applies_to_the_next_sub_epoch(rows: MappedRows, tmp_path: Path) -> None:
    """The rest of the optimizer's state is restored."""
    one = create(Net(), {"lr": 0.05}, seed=0, model="m00", device=CPU)
    two = create(Net(), {"lr": 0.01}, seed=0, model="m00", device=CPU)
    _train(one, rows)
    restore(two, one.state())
    _train(two, rows)
    assert float(two.state()["checkpoint"]["optimizer"]["learning_rate"]) == pytest.approx(0.01)
    assert int(two.state()["checkpoint"]["optimizer"]["slots"][0]) == 2 * BATCHES


def _train(trainee: Trainee, rows: MappedRows) -> None:
    train_sub_epoch(
        Net(), trainee, loader(rows), trainee.hyperparams, seed=0, model="m00", epoch=1, partition=0
    )


def test_evaluation_and_prediction_equal_plain_keras(rows: MappedRows, tmp_path: Path) -> None:
    """As plain Keras on the same rows."""
    trainee = create(Net(), {}, seed=0, model="m00", device=CPU)
    (network,) = user_models(trainee.modules)
    inputs = np.concatenate(
        [np.asarray(batch) for batch, _ in PartitionLoader(rows, batch_size=SIZE, seed=None)]
    )
    labels = np.concatenate(
        [np.asarray(batch) for _, batch in PartitionLoader(rows, batch_size=SIZE, seed=None)]
    )
    found = evaluate(Net(), trainee, loader(rows), {}, seed=1)
    expected = network.evaluate(inputs, labels, batch_size=SIZE, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-5)
    with predicting(Net(), trainee, loader(rows), {}, seed=1) as returned:
        given = np.concatenate(list(returned))  # type: ignore[call-overload]
    assert np.allclose(given, network.predict(inputs, verbose=0), atol=1e-6)
    with predicting(Net(), trainee, loader(rows), {}, seed=1) as returned:
        write_predictions(tmp_path / "predictions.arrow", list(range(ROWS)), returned)


def test_the_length_of_rows_may_differ_between_batches(tmp_path: Path) -> None:
    """As with texts padded per batch; the last batch has fewer rows."""
    counts = [5, 5, 7, 7, 6, 6, 3]
    source = Source(fingerprint="f", metadata="m")
    write_rows(tmp_path, [(ragged(np.ones(n, np.int64)), n % 2) for n in counts], source)

    class Text(Net):
        def create_models(self, hyperparams: Any) -> Any:
            import keras

            embedding = keras.layers.Embedding(4, 3)
            layers = [embedding, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2, "softmax")]
            network = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
            network.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
            return network

        def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Metrics:
            return super().train(models, checkpoint, Padded(dataloader), hyperparams)

    class Padded:
        def __init__(self, dataloader: Any) -> None:
            self._dataloader = dataloader

        def __getattr__(self, name: str) -> Any:
            return getattr(self._dataloader, name)

        def __iter__(self) -> Iterator[Any]:
            for inputs, labels in self._dataloader:
                lengths.append(inputs.padded().shape[1])
                yield inputs.padded(), labels

    lengths: list[int] = []
    trainee = create(Text(), {}, seed=0, model="m00", device=CPU)
    feed = InstrumentedLoader(PartitionLoader([tmp_path], batch_size=2, seed=None))
    result = train_sub_epoch(Text(), trainee, feed, {}, seed=0, model="m00", epoch=1, partition=0)
    assert lengths == [5, 7, 6, 3]
    assert result is not None
    assert int(trainee.state()["checkpoint"]["optimizer"]["slots"][0]) == len(lengths)


@pytest.mark.filterwarnings("ignore:.build... was called on layer")
def test_own_methods_need_no_compiled_model(rows: MappedRows) -> None:
    """It may also have an unused layer, as in plain Keras."""

    class Own(Net):
        def create_models(self, hyperparams: Any) -> Any:
            import keras

            class Model(keras.Model):  # type: ignore[misc]
                def __init__(self) -> None:
                    super().__init__()
                    self.used, self.unused = keras.layers.Dense(2), keras.layers.Dense(3)

                def call(self, inputs: Any) -> Any:
                    return self.used(inputs)

            network = Model()
            if hyperparams.get("is_called", True):
                network(np.zeros((1, 3), np.float32))
            return network

        def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Metrics:
            (network,) = models
            for inputs, _ in dataloader:
                network(inputs)
                network.used.bias.assign(network.used.bias + 1)
            return {"loss": 0.0}

        def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Metrics:
            return {"loss": 0.0}

    with pytest.raises(SpecError, match=r"\(Model\), which is not built"):
        create(Own(), {"is_called": False}, seed=0, model="m00", device=CPU)
    trainee = create(Own(), {}, seed=0, model="m00", device=CPU)
    train_sub_epoch(Own(), trainee, loader(rows), {}, seed=0, model="m00", epoch=1, partition=0)
    again = create(Own(), {}, seed=0, model="m00", device=CPU)
    restore(again, trainee.state())
    (weights,) = again.state()["models"]
    assert [name for name in weights if not name.startswith("beside")] == ["000.kernel", "001.bias"]
    assert weights["001.bias"].tolist() == [BATCHES] * 2


def test_ragged_rows_have_the_backends_type(tmp_path: Path) -> None:
    """NumPy arrays or torch tensors; `padded` keeps the type."""
    source = Source(fingerprint="f", metadata="m")
    write_rows(tmp_path, [(ragged(np.ones(n, np.float32)), n) for n in range(1, 7)], source)
    observed: list[Any] = []

    class Padding(Net):
        def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Metrics:
            for rows, counts in dataloader:
                observed.append(type(rows.padded()).__module__)
                assert np.asarray(rows.padded()).sum(1).tolist() == counts.tolist()
            return {}

    trainee = create(Padding(), {}, seed=0, model="m00", device=CPU)
    feed = InstrumentedLoader(PartitionLoader([tmp_path], batch_size=4, seed=None))
    evaluate(Padding(), trainee, feed, {}, seed=1)
    assert observed == ["numpy" if BACKEND == "tensorflow" else "torch"] * 2


def test_frozen_weights_are_in_a_separate_file(tmp_path: Path) -> None:
    """As with torch, the next checkpoint is small and reads the same."""

    class Frozen(Net):
        def create_models(self, hyperparams: Any) -> Any:
            import keras

            lookup = keras.layers.Embedding(LEAST_BYTES // 256, 64, trainable=False)
            network = keras.Sequential(
                [keras.Input((2,)), lookup, keras.layers.Flatten(), keras.layers.Dense(1)]
            )
            network.compile("sgd", "mse")
            return network

    trainee = create(Frozen(), {}, seed=0, model="m00", device=CPU)
    trainee.frozen.is_wanted = True
    reference = trainee.save(tmp_path, "one.pt")
    assert reference is not None
    assert (tmp_path / "one.pt").stat().st_size < LEAST_BYTES < reference.size
    assert_equal(checkpoints.load(tmp_path, reference, "cpu")["models"], trainee.state()["models"])


def test_weights_with_another_shape_than_saved_are_named(rows: MappedRows) -> None:
    """With their shapes, before anything changes."""

    class Wider(Net):
        def create_models(self, hyperparams: Any) -> Any:
            import keras

            network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(7), keras.layers.Dense(2)])
            network.compile("sgd", "mse")
            return network

    saved = create(Net(), {}, seed=0, model="m00", device=CPU).state()
    other = create(Wider(), {}, seed=0, model="m00", device=CPU)
    with pytest.raises(RuntimeError, match=r"000\.kernel is saved with shape \(3, 6\), and is \(3, 7\) here"):
        restore(other, saved)


def test_another_technique_is_refused_with_the_reason() -> None:
    """By the rules for parallel plans, and by the sub-epoch itself."""
    trainee = create(Net(), {}, seed=0, model="m00", device=CPU)
    reason = facts_of(trainee.modules, {}, hints=Hints()).only_single
    assert "a Keras model, which trains on one device" in reason
    with pytest.raises(NotApplicableError, match=f"ddp cannot train this model: {reason}"):
        prepare(Net(), trainee, resolve(ParallelPlan(technique="ddp", size=2)), {}, Alone(("cpu",)))


@pytest.mark.parametrize(
    ("model_code", "message"),
    [
        ("not built", r"the model 'unbuilt' \(Sequential\), which is not built.*keras\.Input"),
        ("not compiled", r"the model 'plain' \(Sequential\), which is not compiled.*model\.compile"),
        ("a module", r"returned a torch\.nn\.modules\.linear\.Linear, expected a keras\.Model"),
        ("nothing", r"returned a builtins\.NoneType, expected a keras\.Model"),
    ],
)
def test_an_untrainable_model_is_named_with_a_fix(model_code: str, message: str) -> None:
    """With a fix."""

    class Wrong(Net):
        def create_models(self, hyperparams: Any) -> Any:
            import keras

            if model_code == "not built":
                return [keras.Sequential([keras.layers.Dense(2)], name="unbuilt")]
            if model_code == "not compiled":
                return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="plain")
            return [torch.nn.Linear(2, 2)] if model_code == "a module" else None

    with pytest.raises(SpecError, match=message):
        create(Wrong(), {}, seed=0, model="m00", device=CPU)


def test_sub_epochs_equal_a_plain_keras_loop(rows: MappedRows, tmp_path: Path) -> None:
    """Two sub-epochs with a hop equal one loop of `train_on_batch` over the same batches."""
    spec, given = Net(), {"batch_size": SIZE}

    def passes() -> list[PartitionLoader]:
        return [PartitionLoader(rows, batch_size=SIZE, seed=number) for number in (1, 2)]

    def new() -> Trainee:
        return create(spec, given, seed=3, model="m00", device=CPU)

    def batches() -> Iterator[Any]:
        for number, one in enumerate(passes()):
            seed_everything(sub_epoch_seed(3, "m00", 1, number))  # as each sub-epoch does
            for inputs, labels in one:
                yield inputs.numpy(), labels.numpy()

    hopped = new()
    for number, one in enumerate(passes()):
        train_sub_epoch(
            spec, hopped, InstrumentedLoader(one), given, seed=3, model="m00", epoch=1, partition=number
        )
        reference = checkpoints.save(tmp_path, f"{number}.pt", hopped.state())
        hopped = new()
        restore(hopped, checkpoints.load(tmp_path, reference, "cpu"))
    fitted = new()
    (network,) = user_models(fitted.modules)
    for inputs, labels in batches():
        network.train_on_batch(inputs, labels)
    assert_equal(hopped.modules[0].state_dict(), fitted.modules[0].state_dict())

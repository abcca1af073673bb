"""`cerebro.Frozen`: outputs are computed once, shared, and equal with and without files."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import cerebro
from cerebro.data.loader import MergedLoader, PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.data.trees import map_leaves
from cerebro.errors import PreemptedError, SpecError
from cerebro.ragged_rows import Ragged, ragged
from cerebro.spec import SubEpochSpec
from cerebro.worker.training.frozen_layers import layers as layers_module
from cerebro.worker.training.frozen_layers.layers import FrozenLayers
from cerebro.worker.training.frozen_layers.output_cache import OutputCache
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.sub_epoch import create, evaluate, train_sub_epoch

ROWS, PARTITIONS = 50, 2
LIMIT = 1 << 30


def always(*_: float) -> bool:
    """Store outputs at any cost."""
    return True


class Encoder(nn.Module):
    """A small encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 6))
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def scaled(images: Tensor, by: float = 255.0) -> Tensor:
    """Scale bytes."""
    return images.float() / by


def encoder(seed: int = 0) -> Encoder:
    """Create an encoder with the weights of a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder()


def added(images: Tensor, view: Any) -> Tensor:
    """Add 1 to images through a view of their memory, which torch does not notice."""
    view += 1
    return images


def reordered() -> Encoder:
    """Create an encoder with the same named layers in another order."""
    created = encoder()
    layers = dict(created.layers.named_children())
    created.layers = nn.Sequential(OrderedDict((name, layers[name]) for name in "01342"))
    return created


@pytest.fixture(name="folders")
def _folders(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    folders = [tmp_path / f"partition-{number:04d}" for number in range(PARTITIONS)]
    for folder in folders:
        rows = [
            (
                {
                    "image": generator.integers(0, 255, (3, 8, 8), dtype=np.uint8),
                    "words": ragged(np.arange(row % 5)),
                },
                np.int64(row % 3),
            )
            for row in range(ROWS)
        ]
        write_rows(folder, rows, Source(fingerprint="rows", metadata=""))
    return folders


class Counter:
    """Counts the rows that encoders compute."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, module: nn.Module, arguments: Any, outputs: Any) -> None:
        self.rows += len(outputs) if isinstance(module, Encoder) else 0


@pytest.fixture(name="counter", autouse=True)
def _counter() -> Iterator[Counter]:
    counter = Counter()
    hook = register_module_forward_hook(counter)
    yield counter
    hook.remove()


@pytest.fixture(name="cache")
def _cache(tmp_path: Path) -> OutputCache:
    return OutputCache(tmp_path / "frozen", "data", LIMIT, always)


def passes(
    frozen: cerebro.Frozen,
    loader: PartitionLoader,
    cache: OutputCache | None = None,
    call: Callable[[Any], Any] = lambda inputs: inputs["image"],
    on_chunk: Callable[[], None] = lambda: None,
) -> tuple[list[Any], list[str]]:
    """Return the outputs of one pass, and the warnings."""
    frozen_layers = FrozenLayers(loader, cache, on_chunk)
    with frozen_layers.bound([frozen]):
        found = [frozen(call(frozen_layers.begin_batch(batch)[0])) for batch in loader]
    return found, frozen_layers.warnings


def loader_of(folders: list[Path], seed: int | None = 3, batch_size: int = 7) -> PartitionLoader:
    """Create a loader."""
    return PartitionLoader(folders, batch_size=batch_size, seed=seed)


def test_models_share_outputs(folders: list[Path], cache: OutputCache, counter: Counter) -> None:
    """The first model computes each row once; a second model with the same layers computes none."""
    first, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    computed = counter.rows
    second, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    assert computed == PARTITIONS * (ROWS + 2)  # two rows of each partition are checked alone
    assert counter.rows == computed
    assert torch.equal(torch.cat(first), torch.cat(second))


def test_outputs_are_equal_with_and_without_files(folders: list[Path], cache: OutputCache) -> None:
    """Outputs from files and from memory are equal to the bit, in any order and batch size."""
    stored, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    held, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders))
    in_order, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders, None, 50), cache)
    assert torch.equal(torch.cat(stored), torch.cat(held))
    order = torch.cat([torch.from_numpy(rows) for rows in _positions(loader_of(folders))])
    assert torch.equal(torch.cat(stored), torch.cat(in_order)[order])


def test_outputs_equal_direct_computation(folders: list[Path], cache: OutputCache) -> None:
    """Stored outputs equal the layers' outputs within rounding."""
    frozen, loader = cerebro.Frozen(encoder(), scaled), loader_of(folders)
    found, _ = passes(frozen, loader, cache)
    expected = [frozen.compute(inputs["image"]) for inputs, _ in loader_of(folders)]
    assert torch.allclose(torch.cat(found), torch.cat(expected), atol=1e-5)


def test_a_merged_pass_gets_the_rows_of_each_partition(folders: list[Path], cache: OutputCache) -> None:
    """A replay of a gang's sub-epoch reads several partitions in another order."""
    frozen = cerebro.Frozen(encoder(), scaled)
    loader = MergedLoader(folders, batch_size=9, seeds=[1, 2])
    frozen_layers = FrozenLayers(loader, cache)
    with frozen_layers.bound([frozen]):
        for batch in loader:
            inputs, _ = frozen_layers.begin_batch(batch)
            assert torch.allclose(frozen(inputs["image"]), frozen.compute(inputs["image"]), atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: inputs["image"].flip(3),
        lambda inputs: inputs["image"].clone(),
        lambda inputs: inputs["image"].add_(1),
        lambda inputs: added(inputs["image"], inputs["image"].data),
        lambda inputs: added(inputs["image"], inputs["image"].numpy()),
        lambda inputs: inputs["image"][1:],
    ],
    ids=["flipped", "copied", "changed in place", "changed by data", "changed by NumPy", "some rows"],
)
def test_other_arguments_are_computed(
    folders: list[Path], cache: OutputCache, change: Callable[[Any], Any], counter: Counter
) -> None:
    """A changed or copied input is no input of the batch: the layers compute it."""
    frozen = cerebro.Frozen(encoder(), scaled)
    passes(frozen, loader_of(folders), cache)
    counter.rows = 0
    arguments: list[Tensor] = []

    def changed(inputs: Any) -> Any:
        argument = change(inputs)
        arguments.append(argument.clone())
        return argument

    found, _ = passes(frozen, loader_of(folders), cache, changed)
    assert counter.rows == sum(map(len, arguments))
    for output, argument in zip(found, arguments, strict=True):
        assert torch.equal(output, frozen.compute(argument))


def test_an_earlier_batch_keeps_its_rows(folders: list[Path], cache: OutputCache, counter: Counter) -> None:
    """A library may hold the previous batch: its inputs still get their own outputs."""
    frozen, loader = cerebro.Frozen(encoder(), scaled), loader_of(folders)
    frozen_layers = FrozenLayers(loader, cache)
    with frozen_layers.bound([frozen]):
        batches = [frozen_layers.begin_batch(batch)[0]["image"] for batch in loader]
        counter.rows = 0
        found = [frozen(images) for images in batches]
    assert counter.rows == PARTITIONS * (ROWS + 2)
    for images, output in zip(batches, found, strict=True):
        assert torch.allclose(output, frozen.compute(images), atol=1e-5)


def test_trees_and_ragged_inputs(folders: list[Path], cache: OutputCache) -> None:
    """The argument may be several inputs, also ragged ones; the outputs may be a tree of any dtypes."""

    class Both(nn.Module):
        def forward(self, inputs: Any) -> Any:
            words: Ragged = inputs["words"]
            padded = nn.functional.pad(words.padded(0), (0, 8 - words.padded(0).shape[1]))
            image = inputs["image"].float().mean((2, 3))
            return {"all": (image.bfloat16(), padded), "is_dark": image[:, 0] < 100}

    frozen = cerebro.Frozen(Both())
    frozen_layers = FrozenLayers(loader := loader_of(folders), cache)
    with frozen_layers.bound([frozen]):
        for batch in loader:
            inputs, _ = frozen_layers.begin_batch(batch)
            expected, found = frozen.compute(inputs), frozen(dict(inputs))
            pairs = zip(_leaves(expected), _leaves(found), strict=True)
            assert all(one.dtype is other.dtype and torch.equal(one, other) for one, other in pairs)
    assert frozen_layers.warnings == []


@pytest.mark.parametrize(
    "other",
    [
        lambda: cerebro.Frozen(encoder(1), scaled),
        lambda: cerebro.Frozen(reordered(), scaled),
        lambda: cerebro.Frozen(encoder(), partial(scaled, by=100.0)),
        lambda: cerebro.Frozen(encoder(), lambda images: scaled(images) + 1),
        lambda: cerebro.Frozen(encoder(), scaled, dtype=torch.float16),
    ],
    ids=["weights", "order of layers", "argument of prepare", "prepare", "dtype"],
)
def test_other_layers_share_nothing(
    folders: list[Path], cache: OutputCache, other: Callable[[], cerebro.Frozen], counter: Counter
) -> None:
    """Layers with other weights, order, preparation or precision get their own outputs."""
    passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    counter.rows = 0
    frozen = other()
    found, _ = passes(frozen, loader_of(folders), cache)
    assert counter.rows == PARTITIONS * (ROWS + 2)
    expected = [frozen.compute(inputs["image"]) for inputs, _ in loader_of(folders)]
    assert torch.allclose(torch.cat(found), torch.cat(expected), atol=1e-3)


def test_changed_weights_are_not_read_from_the_cache(folders: list[Path], cache: OutputCache) -> None:
    """If user code changes the weights within a sub-epoch, the layers compute."""
    frozen, loader = cerebro.Frozen(encoder(), scaled), loader_of(folders)
    frozen_layers = FrozenLayers(loader, cache)
    with frozen_layers.bound([frozen]):
        for batch in loader:
            images = frozen_layers.begin_batch(batch)[0]["image"]
            before = frozen(images)
            frozen.module.layers[4].bias.data.copy_(torch.ones(6))  # type: ignore[union-attr, index]
            with torch.no_grad():
                frozen.module.layers[4].bias.add_(1)  # type: ignore[union-attr, index]
            assert not torch.allclose(frozen(images), before)
            assert torch.equal(frozen(images), frozen.compute(images))
            break


@pytest.mark.parametrize("change", ["prepare", "dtype", "data"])
def test_changed_settings_and_replaced_memory_are_computed(folders: list[Path], change: str) -> None:
    """Another `prepare` or `dtype`, and other memory of a parameter, have no stored outputs."""
    frozen, loader = cerebro.Frozen(encoder(), scaled), loader_of(folders)
    frozen_layers = FrozenLayers(loader)
    with frozen_layers.bound([frozen]):
        for batch in loader:
            images = frozen_layers.begin_batch(batch)[0]["image"]
            before = frozen(images)
            if change == "prepare":
                frozen.prepare = lambda images: scaled(images) + 1
            elif change == "dtype":
                frozen.dtype = torch.bfloat16
            else:
                bias = frozen.module.layers[4].bias  # type: ignore[union-attr, index]
                bias.data = bias.data + 1
            assert not torch.equal(frozen(images), before)
            assert torch.equal(frozen(images), frozen.compute(images))
            break


@pytest.mark.parametrize("change", ["data", "parameter"])
def test_an_unnoticed_change_of_weights_is_an_error(folders: list[Path], change: str) -> None:
    """Stored outputs did not fit the new weights, so the sub-epoch fails instead of training on them."""
    frozen, loader = cerebro.Frozen(encoder(), scaled), loader_of(folders)
    frozen_layers = FrozenLayers(loader)

    def train() -> None:
        with frozen_layers.bound([frozen]):
            for batch in loader:
                frozen(frozen_layers.begin_batch(batch)[0]["image"])
                layer: Any = frozen.module.layers[4]  # type: ignore[index]
                if change == "data":
                    layer.bias.data.add_(1)
                else:
                    layer.bias = nn.Parameter(layer.bias + 1)

    with pytest.raises(
        SpecError, match=r"weights of Frozen\(Encoder\) were replaced, or changed through \.data"
    ):
        train()


@pytest.mark.parametrize("has_files", [True, False])
def test_inference_mode_reads_stored_outputs(
    folders: list[Path], cache: OutputCache, counter: Counter, has_files: bool
) -> None:
    """Tensors of `torch.inference_mode` have no version counter. Their changes are recognised all the same."""
    frozen, loader = cerebro.Frozen(encoder(), scaled), loader_of(folders)
    frozen_layers = FrozenLayers(loader, cache if has_files else None)

    def read() -> None:
        for batch in loader:
            images = frozen_layers.begin_batch(batch)[0]["image"]
            assert torch.allclose(frozen(images), frozen.module(scaled(images)), atol=1e-5)
            assert torch.equal(frozen(images.add_(1)), frozen.compute(images))

    with frozen_layers.bound([frozen]):
        torch.inference_mode()(read)()
        counter.rows = 0
        for batch in loader:
            outputs = frozen(frozen_layers.begin_batch(batch)[0]["image"])
            nn.Linear(6, 3)(outputs).sum().backward()
        assert counter.rows == 0


def test_a_compiled_model_reads_stored_outputs(
    folders: list[Path], cache: OutputCache, counter: Counter
) -> None:
    """`torch.compile` compiles the trained layers around frozen ones."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = cerebro.Frozen(encoder(), scaled), nn.Linear(6, 3)

        def forward(self, images: Tensor) -> Any:
            return self.head(self.features(images))

    model = Model()
    model.compile(backend="eager")
    frozen_layers = FrozenLayers(loader := loader_of(folders), cache)
    with frozen_layers.bound([model]):
        for batch in loader:
            images = frozen_layers.begin_batch(batch)[0]["image"]
            found, rows = model(images), counter.rows
            assert torch.allclose(found, model.head(model.features.compute(images)), atol=1e-5)
            counter.rows = rows
    assert counter.rows == PARTITIONS * (ROWS + 2)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["bytes", "manifest", "shard"])
def test_a_damaged_entry_is_computed_again(
    folders: list[Path], cache: OutputCache, tmp_path: Path, damage: str, counter: Counter
) -> None:
    """Damaged files are replaced; the outputs stay the same."""
    expected, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    for entry in (tmp_path / "frozen/data").iterdir():
        (shard,) = entry.glob("*.arrow")
        if damage == "bytes":
            content = bytearray(shard.read_bytes())
            content[len(content) // 2] ^= 1
            shard.write_bytes(content)
        elif damage == "manifest":
            (entry / "partition.json").write_text("{")
        else:
            shard.unlink()
    counter.rows = 0
    found, warnings = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    assert torch.equal(torch.cat(found), torch.cat(expected))
    assert counter.rows == PARTITIONS * (ROWS + 2)
    assert warnings == []
    counter.rows = 0
    passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    assert counter.rows == 0


def test_a_limit_of_the_cache_is_a_warning(folders: list[Path], tmp_path: Path) -> None:
    """Outputs that exceed the cache are computed in each sub-epoch, and a warning says so once."""
    small = OutputCache(tmp_path / "frozen", "data", 100)
    expected, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders))
    found, warnings = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), small)
    assert torch.equal(torch.cat(found), torch.cat(expected))
    assert warnings == [
        "1,200 bytes exceed the limit of the cache, 100 (CEREBRO_FROZEN_CACHE_MIB). The outputs of Frozen(Encoder) "
        "are computed in each sub-epoch instead"
    ]


def test_a_volume_without_a_cache_trains(folders: list[Path], tmp_path: Path) -> None:
    """A limit of 0 switches the cache off without a warning."""
    found, warnings = passes(
        cerebro.Frozen(encoder(), scaled), loader_of(folders), OutputCache(tmp_path / "frozen", "data", 0)
    )
    assert len(torch.cat(found)) == PARTITIONS * ROWS
    assert warnings == []
    assert not (tmp_path / "frozen").exists()


def test_the_least_recently_used_entry_goes(folders: list[Path], tmp_path: Path, counter: Counter) -> None:
    """A full cache removes the entry that was not used for the longest time."""
    one = loader_of(folders[:1])
    size = _size_of_entry(one, tmp_path)
    cache = OutputCache(tmp_path / "frozen", "data", 2 * size + 500, always)
    for seed in (0, 1, 0, 2):
        passes(cerebro.Frozen(encoder(seed), scaled), one, cache)
    counter.rows = 0
    passes(cerebro.Frozen(encoder(0), scaled), one, cache)
    passes(cerebro.Frozen(encoder(2), scaled), one, cache)
    assert counter.rows == 0
    passes(cerebro.Frozen(encoder(1), scaled), one, cache)
    assert counter.rows > 0


def test_outputs_that_are_cheap_to_compute_are_not_stored(folders: list[Path], tmp_path: Path) -> None:
    """If reading takes longer than computing, the outputs stay in memory, in all later sub-epochs."""
    cache = OutputCache(tmp_path / "frozen", "data", LIMIT, lambda *_: False)
    for _ in range(2):
        _, warnings = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
        assert warnings == []
    assert {path.suffix for path in (tmp_path / "frozen/data").iterdir()} == {".direct"}


def test_outputs_beyond_memory_are_computed_in_each_batch(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room on the volume and in memory, the layers compute each batch, with a warning."""
    monkeypatch.setattr(layers_module, "_MEMORY_SHARE", 1e-12)
    frozen = cerebro.Frozen(encoder(), scaled)
    found, warnings = passes(frozen, loader_of(folders))
    expected = [frozen.compute(inputs["image"]) for inputs, _ in loader_of(folders)]
    assert torch.equal(torch.cat(found), torch.cat(expected))
    assert ["fit neither the cache nor" in text for text in warnings] == [True]


def test_a_preempted_computation_leaves_nothing(
    folders: list[Path], cache: OutputCache, tmp_path: Path
) -> None:
    """A task may be left during the computation; no part of an entry stays."""
    calls = iter(range(100))

    def on_chunk() -> None:
        if next(calls) == 1:
            raise PreemptedError("the worker ends")

    with pytest.raises(PreemptedError):
        passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache, on_chunk=on_chunk)
    assert list((tmp_path / "frozen/data").iterdir()) == []


def test_a_killed_writer_leaves_no_lock(folders: list[Path], cache: OutputCache, tmp_path: Path) -> None:
    """Temporary files of a killed process are removed, and its lock blocks no process."""
    passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    for entry in list((tmp_path / "frozen/data").iterdir()):
        entry.rename(entry.with_name(f".{entry.name}.0a1b2c3d.aside"))
        entry.with_name(f".{entry.name}.lock").touch()
    passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    assert not [path for path in (tmp_path / "frozen/data").iterdir() if path.name.startswith(".")]


def test_a_waiting_process_that_leaves_keeps_the_lock(cache: OutputCache, tmp_path: Path) -> None:
    """Only the process that computes removes the lock. The next one locks a file that others see."""
    lock = tmp_path / "frozen/data/.key.lock"

    def leave() -> None:
        raise PreemptedError("the worker ends")

    first = ExitStack()
    first.enter_context(cache.writing("key", leave))
    with pytest.raises(PreemptedError), cache.writing("key", leave):
        pass
    assert lock.exists()
    with cache.writing("key", first.close):
        assert lock.exists()
    assert not lock.exists()


def test_an_entry_that_never_fits_removes_no_other(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counter: Counter
) -> None:
    """If other files fill the volume, removing entries would not make room."""
    cache = OutputCache(tmp_path / "frozen", "data", LIMIT, always)
    passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    usage = type(shutil.disk_usage(tmp_path))(10 << 20, 10 << 20, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    _, warnings = passes(cerebro.Frozen(encoder(1), scaled), loader_of(folders), cache)
    assert ["has no room for 1,200 bytes" in text for text in warnings] == [True]
    counter.rows = 0
    passes(cerebro.Frozen(encoder(), scaled), loader_of(folders), cache)
    assert counter.rows == 0


# --- what user code may get wrong ----------------------------------------------------------------


class Centered(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() - images.float().mean(0)


class Noisy(nn.Module):
    """Adds random numbers."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean((1, 2, 3)) + 100 * torch.rand(len(images))


class Mean(nn.Module):
    """Returns one number for all rows."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean()


class Listed(nn.Module):
    """Returns a list."""

    def forward(self, images: Tensor) -> Any:
        return [images]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Centered(), r"the output of Frozen\(Centered\) depends on the batch"),
        (Noisy(), r"the output of Frozen\(Noisy\) depends on the batch"),
        (Mean(), r"Frozen\(Mean\) returned a tensor of shape \(\) for 32 rows: return one entry per row"),
        (Listed(), r"Frozen\(Listed\) returned a list: return a tensor, or a dict or tuple"),
    ],
)
def test_unsuitable_layers_are_errors(folders: list[Path], module: nn.Module, text: str) -> None:
    """Each error names the returned value and the expected one."""
    with pytest.raises(SpecError, match=text):
        passes(cerebro.Frozen(module), loader_of(folders))


def test_layers_with_unknown_state_are_not_shared(
    folders: list[Path], cache: OutputCache, tmp_path: Path
) -> None:
    """Two objects whose state cannot be read may differ, so their outputs stay in memory, with a warning."""

    def held(images: Tensor, lock: Any) -> Tensor:
        return scaled(images)

    frozen = cerebro.Frozen(encoder(), partial(held, lock=threading.Lock()))
    found, warnings = passes(frozen, loader_of(folders), cache)
    expected, _ = passes(cerebro.Frozen(encoder(), scaled), loader_of(folders))
    assert torch.equal(torch.cat(found), torch.cat(expected))
    assert warnings == [
        "the outputs of Frozen(Encoder) are computed in each sub-epoch, because the state of a lock cannot be read"
    ]
    assert not (tmp_path / "frozen").exists()


def test_frozen_layers_stay_frozen() -> None:
    """`train` and `requires_grad_` change nothing."""
    frozen = cerebro.Frozen(encoder())
    nn.Sequential(frozen).train().requires_grad_(True)
    assert not any(part.training for part in frozen.modules())
    assert not frozen(torch.rand(2, 3, 8, 8)).requires_grad


# --- sub-epochs ----------------------------------------------------------------------------------


class Transfer(SubEpochSpec):
    """Trains a head on frozen features."""

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        return [cerebro.Frozen(encoder(), scaled), nn.Linear(6, 3)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        features, head = models
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
        checkpoint.track(optimizer=optimizer)
        loss = torch.zeros(())
        for inputs, labels in dataloader:
            loss = nn.functional.cross_entropy(head(features(inputs["image"])), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {"loss": loss.item()}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        features, head = models
        hits = [(head(features(x["image"])).argmax(1) == y).float().mean().item() for x, y in dataloader]
        return {"accuracy": sum(hits) / len(hits)}


class Unshared(Transfer):
    """The same with an encoder in evaluation mode that computes each batch."""

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        frozen, head = super().create_models(hyperparams)
        return [Direct(frozen), head]


class Direct(nn.Module):
    """Calls the layers of a `Frozen`."""

    def __init__(self, frozen: nn.Module) -> None:
        super().__init__()
        layers = frozen.module
        assert isinstance(layers, nn.Module)
        self.layers = layers

    def forward(self, images: Tensor) -> Any:
        self.layers.eval()
        with torch.no_grad():
            return self.layers(scaled(images))


def trained(
    spec: SubEpochSpec, folders: list[Path], cache: OutputCache | None
) -> tuple[dict[str, Tensor], Any]:
    """Train two sub-epochs and evaluate; return the head's weights and the metrics."""
    model = create(spec, {"batch_size": 7}, seed=1, model="m00", device=torch.device("cpu"))
    for partition, folder in enumerate(folders):
        feed = InstrumentedLoader(loader := loader_of([folder]))
        feed.frozen_layers = FrozenLayers(loader, cache)
        train_sub_epoch(
            spec, model, feed, {"batch_size": 7}, seed=1, model="m00", epoch=1, partition=partition
        )
        assert model.warnings == []
    feed = InstrumentedLoader(loader := loader_of(folders, None))
    feed.frozen_layers = FrozenLayers(loader, cache)
    metrics = evaluate(spec, model, feed, {"batch_size": 7}, seed=1)
    return {name: weight.clone() for name, weight in model.modules[1].state_dict().items()}, metrics


def test_training_equals_training_without_shared_layers(folders: list[Path], cache: OutputCache) -> None:
    """Within rounding, weights equal the weights of a model that computes each batch."""
    expected, expected_metrics = trained(Unshared(), folders, None)
    found, metrics = trained(Transfer(), folders, cache)
    assert metrics == expected_metrics
    for name, weight in expected.items():
        assert torch.allclose(found[name], weight, rtol=1e-5, atol=1e-6)


def test_training_is_equal_to_the_bit_with_and_without_files(folders: list[Path], cache: OutputCache) -> None:
    """A replay has no files, and the second model finds files: all weights are equal."""
    runs = [trained(Transfer(), folders, each) for each in (cache, cache, None)]
    for weights, metrics in runs[1:]:
        assert metrics == runs[0][1]
        assert all(torch.equal(weights[name], weight) for name, weight in runs[0][0].items())


def test_a_warning_reaches_the_user(folders: list[Path], tmp_path: Path) -> None:
    """The warnings of a sub-epoch say why outputs were not stored."""
    spec, loader = Transfer(), loader_of(folders)
    model = create(spec, {"batch_size": 7}, seed=1, model="m00", device=torch.device("cpu"))
    feed = InstrumentedLoader(loader)
    feed.frozen_layers = FrozenLayers(loader, OutputCache(tmp_path / "frozen", "data", 100))
    train_sub_epoch(spec, model, feed, {"batch_size": 7}, seed=1, model="m00", epoch=1, partition=0)
    assert len(model.warnings) == 1
    assert "exceed the limit of the cache" in model.warnings[0]


def _positions(loader: PartitionLoader) -> Iterator[Any]:
    for _ in loader:
        yield loader.positions.copy()


def _leaves(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_leaves(found.append, tree)
    return found


def _size_of_entry(loader: PartitionLoader, tmp_path: Path) -> int:
    cache = OutputCache(tmp_path / "measured", "data", LIMIT, always)
    passes(cerebro.Frozen(encoder(7), scaled), loader, cache)
    (entry,) = (tmp_path / "measured/data").iterdir()
    return sum(path.stat().st_size for path in entry.iterdir())

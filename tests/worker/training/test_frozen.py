"""Frozen weights are written to one shared file, and checkpoints stay bit-identical."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cerebro.client.files import MountedFiles
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files import durable
from cerebro.data.files.base_file import Layout, base_written, is_base, layout_of
from cerebro.data.files.checkpoint_files import outdated
from cerebro.data.files.durable import checksum
from cerebro.errors import CheckpointCorruptError, StorageFullError
from cerebro.runtime.isolation.process_exit import fork
from cerebro.runtime.volumes import Volumes, checkpoint_file
from cerebro.worker.training.checkpoints import frozen as freezing
from cerebro.worker.training.checkpoints.checkpoint import check, load, read, save
from cerebro.worker.training.checkpoints.mapped_base import MappedReader
from cerebro.worker.training.checkpoints.storable import state_bytes
from cerebro.worker.training.sub_epoch import restore
from cerebro.worker.training.tracked_checkpoint import Checkpoint
from cerebro.worker.training.trainee import Trainee

WIDTH = 128
TENSOR = 4 * WIDTH * WIDTH


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a frozen-weights file from 64 KiB on."""
    monkeypatch.setattr(freezing, "LEAST_BYTES", TENSOR)
    monkeypatch.setattr(freezing, "_LEAST_TENSOR", TENSOR // 2)


def network(layers: int = 4, trained: int = 1) -> Any:
    """Layers with the last ones trainable, and a BatchNorm."""
    torch.manual_seed(3)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)), nn.BatchNorm1d(WIDTH))
    for layer in list(module)[: layers - trained]:
        layer.requires_grad_(False)
    return module


def holder(module: nn.Sequential | None = None) -> Trainee:
    trainee = Trainee(modules=[module or network()], checkpoint=Checkpoint({"n": 1}))
    trainee.frozen.is_wanted = True
    return trainee


def trained(trainee: Trainee) -> None:
    """Train the trainable weights and update the statistics."""
    module = only(trainee)
    module.train()
    module(torch.rand(8, WIDTH)).sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def only(trainee: Trainee) -> Any:
    """Return its only module."""
    return trainee.modules[0]


def name(sub_epoch: int, attempt: int = 1) -> str:
    return checkpoint_file(sub_epoch=sub_epoch, epoch=1, partition=sub_epoch, attempt=attempt)


def saved(trainee: Trainee, root: Path, sub_epoch: int, attempt: int = 1) -> CheckpointRef:
    """Save a sub-epoch's checkpoint and compare it with one without a frozen-weights file."""
    reference = trainee.save(root, name(sub_epoch, attempt))
    assert reference is not None
    plain = save(root, "plain", trainee.state())
    assert (reference.checksum, reference.size) == (plain.checksum, plain.size)
    found = load(root, reference, "cpu")
    assert list(found["models"][0]) == list(trainee.modules[0].state_dict())
    for key, tensor in trainee.modules[0].state_dict().items():
        assert torch.equal(found["models"][0][key], tensor)
    (root / "plain").unlink()
    return reference


def hopped(root: Path, reference: CheckpointRef, module: nn.Sequential | None = None) -> Trainee:
    """Restore the model as the next worker does."""
    trainee = holder(module)
    restore(trainee, read(check(root, reference), "cpu"))
    return trainee


def bases(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if is_base(path.name))


def own_bytes(root: Path, reference: CheckpointRef) -> int:
    return (root / reference.name).stat().st_size


def test_frozen_weights_are_written_once_and_restored_bit_identically(tmp_path: Path) -> None:
    """Three of four layers are in the frozen-weights file; its name has its checksum."""
    trainee = holder()
    for sub_epoch in range(4):
        trained(trainee)
        reference = saved(trainee, tmp_path, sub_epoch)
        assert own_bytes(tmp_path, reference) < 2 * TENSOR
        trainee = hopped(tmp_path, reference)
    (base,) = bases(tmp_path)
    assert checksum(tmp_path / base) == base_written(base)
    assert (tmp_path / base).stat().st_size == 3 * TENSOR


def test_with_few_frozen_weights_the_file_is_a_plain_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds if the frozen-weights file is disabled."""
    trainee = holder()
    monkeypatch.setattr(freezing, "LEAST_BYTES", 3 * TENSOR + 1)
    saved(trainee, tmp_path, 0)
    monkeypatch.setattr(freezing, "LEAST_BYTES", TENSOR)
    trainee.frozen.is_wanted = False
    saved(trainee, tmp_path, 1)
    plain = [(tmp_path / name(sub_epoch)).read_bytes() for sub_epoch in range(2)]
    assert plain[0] == plain[1]
    assert bases(tmp_path) == []
    save(tmp_path, "plain", trainee.state())
    assert (tmp_path / "plain").read_bytes() == plain[0]


def _in_place(module: Any) -> None:
    with torch.no_grad():
        module[0].weight.add_(1.0)


def _unseen(module: Any) -> None:
    before = module[0].weight._version
    module[0].weight.data.mul_(0.99)  # like a teacher's weights that follow the student
    assert module[0].weight._version == before


def _by_numpy(module: Any) -> None:
    module[0].weight.detach().numpy()[7, 3] = 4.0


def _swapped(module: Any) -> None:
    rows = module[0].weight.detach().clone()
    module[0].weight.data[0], module[0].weight.data[1] = rows[1], rows[0]


def _stepped(module: Any) -> None:
    module[0].weight.grad = torch.ones_like(module[0].weight)
    torch.optim.SGD(module.parameters(), lr=0.1).step()


def _thawed(module: Any) -> None:
    module[0].requires_grad_(True)
    _in_place(module)


def _another(module: Any) -> None:
    module[0].weight = nn.Parameter(torch.rand(WIDTH, WIDTH), requires_grad=False)


@pytest.mark.parametrize("change", [_in_place, _unseen, _by_numpy, _swapped, _stepped, _thawed, _another])
def test_a_frozen_weight_that_changes_is_written_with_its_new_value(
    tmp_path: Path, change: Callable[[Any], None]
) -> None:
    """This holds for any flag and kind of change; other weights stay in the existing file."""
    trainee = hopped(tmp_path, saved(holder(), tmp_path, 0))
    change(only(trainee))
    reference = saved(trainee, tmp_path, 1)
    assert 2 * TENSOR < own_bytes(tmp_path, reference) < 3 * TENSOR
    again = hopped(tmp_path, reference)
    change(only(again))
    reference = saved(again, tmp_path, 2)
    assert own_bytes(tmp_path, reference) < 3 * TENSOR
    assert len(bases(tmp_path)) == 1


def test_a_weight_that_always_changes_does_not_cause_new_bases(tmp_path: Path) -> None:
    """Changes are tracked across files, even if most of the model is frozen."""
    trainee = holder()
    for sub_epoch in range(6):
        _unseen(only(trainee))
        trainee = hopped(tmp_path, saved(trainee, tmp_path, sub_epoch))
    assert len(bases(tmp_path)) == 1


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    """Covers sharing within a module, across modules and in the user's state; a view is kept."""
    one, other = network(), nn.Linear(WIDTH, WIDTH)
    other.requires_grad_(False)
    one[1].weight = one[0].weight
    other.weight = one[0].weight
    trainee = holder(one)
    trainee.modules.append(other)
    trainee.checkpoint["teacher"] = one[0].state_dict()
    trainee.checkpoint["turned"] = one[0].weight.detach().t()
    reference = saved(trainee, tmp_path, 0)
    (base,) = bases(tmp_path)
    assert (tmp_path / base).stat().st_size == 2 * TENSOR
    found = load(tmp_path, reference, "cpu")
    assert torch.equal(found["models"][1]["weight"], one[0].weight)
    assert torch.equal(found["checkpoint"]["teacher"]["weight"], one[0].weight)
    assert torch.equal(found["checkpoint"]["turned"], one[0].weight.t())


@given(rows=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=100)
def test_the_digest_does_not_depend_on_the_split_of_rows(rows: int, cuts: list[int], seed: int) -> None:
    """The digests of parts add up to the whole's, and depend on the row order."""
    torch.manual_seed(seed)
    tensor = torch.rand(rows, 3, 5)
    ends = sorted(min(cut, rows) for cut in cuts)
    parts = itertools.pairwise([0, *ends, rows])
    whole = freezing.digest(tensor, 0)
    assert sum(freezing.digest(tensor[a:b], a) for a, b in parts) % (1 << 64) == whole
    if rows > 1:
        assert freezing.digest(tensor.flip(0), 0) != whole


# --- damage, crashes --------------------------------------------------------------------------------


def damaged_bases() -> dict[str, Callable[[Path], object]]:
    def flipped(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(TENSOR + 5)
            byte = file.read(1)[0]
            file.seek(TENSOR + 5)
            file.write(bytes([byte ^ 1]))

    return {
        "gone": Path.unlink,
        "empty": lambda path: path.write_bytes(b""),
        "cut": lambda path: os.truncate(path, TENSOR),
        "flipped": flipped,
    }


@pytest.mark.parametrize("how", damaged_bases())
def test_a_missing_or_damaged_base_makes_its_checkpoint_unreadable(tmp_path: Path, how: str) -> None:
    """The error has the file's name; a retry from the beginning writes a new file next to it."""
    trainee = holder()
    reference = saved(trainee, tmp_path, 0)
    (base,) = bases(tmp_path)
    damaged_bases()[how](tmp_path / base)
    with pytest.raises(CheckpointCorruptError, match=base):
        check(tmp_path, reference)
    again = saved(holder(), tmp_path, 0, attempt=2)
    assert load(tmp_path, again, "cpu")
    # An earlier attempt continues, and does without a missing file.
    trainee.frozen.layout = _layout_at(tmp_path / reference.name)
    if how != "flipped":
        saved(trainee, tmp_path, 1)


@pytest.mark.parametrize("byte", [-1, -20, -40, -200, 100])
def test_any_damaged_byte_of_the_layout_is_found(tmp_path: Path, byte: int) -> None:
    reference = saved(holder(), tmp_path, 0)
    path = tmp_path / reference.name
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError):
        load(tmp_path, reference, "cpu")


@pytest.mark.slow
@pytest.mark.processes
def test_a_kill_between_any_two_writes_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    """The previous checkpoint survives, and the next attempt succeeds. The next commit removes the leftovers."""
    first = saved(holder(network(6, trained=5)), tmp_path, 0)
    for kill_at in range(100):
        trainee = hopped(tmp_path, first, network(6, trained=5))
        trained(trainee)
        for layer in list(only(trainee))[1:5]:
            layer.requires_grad_(False)  # writes a new frozen-weights file, then the checkpoint
        if not _dies(partial(trainee.save, tmp_path, name(1, 2 * kill_at + 1)), kill_at):
            break
        load(tmp_path, first, "cpu")
        found = saved(trainee, tmp_path, 1, 2 * kill_at + 2)
        for path in outdated(tmp_path, 2, {first.name, found.name}):
            path.unlink()
        assert {path.name for path in tmp_path.iterdir()} == {
            first.name,
            found.name,
            *_named(tmp_path, found, first),
        }
        for path in outdated(tmp_path, 2, {first.name}):
            path.unlink()
    else:
        pytest.fail("it never came to its end")
    assert kill_at > 10


def _named(root: Path, *references: CheckpointRef) -> set[str]:
    layouts = [_layout_at(root / each.name) for each in references]
    return {layout.base for layout in layouts if layout}


def _dies(action: Callable[[], object], at: int) -> bool:
    """Return True if a child process that runs `action` dies at its call number `at`."""
    pid = fork()
    if pid == 0:
        count = itertools.count()
        writing = durable.DurableFile
        calls: list[tuple[Any, str]] = [(os, "fsync"), (Path, "replace"), (os, "pwrite")]
        for where, what in (*calls, (writing, "flush"), (writing, "leave")):
            setattr(where, what, _killing(getattr(where, what), count, at))
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _killing(original: Callable[..., object], count: itertools.count[int], at: int) -> Callable[..., object]:
    def called(*args: object, **named: object) -> object:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **named)

    return called


@pytest.mark.parametrize("where", ["write", "leave", "commit"])
def test_a_full_volume_keeps_no_new_base_and_reports_the_total_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The next attempt writes both the checkpoint and the frozen-weights file."""
    trainee = holder()
    monkeypatch.setattr(durable.DurableFile, where, full)
    with pytest.raises(StorageFullError) as error:
        trainee.save(tmp_path, name(0))
    assert list(tmp_path.iterdir()) == []
    assert error.value.needs_bytes > 2 * state_bytes(trainee.state())  # type: ignore[attr-defined]


def full(*args: object, **named: object) -> int:
    raise StorageFullError("full")


# --- shared by models and processes ------------------------------------------------------------


def test_models_of_a_run_share_one_base_until_the_last_one_is_removed(tmp_path: Path) -> None:
    """Equal frozen weights are links to one file; other weights are not. Removing a model keeps the others whole."""
    references = []
    for model, module in (("m00", network()), ("m01", network()), ("m02", network(layers=5))):
        folder = tmp_path / "experiment" / "run" / model
        folder.mkdir(parents=True)
        found = holder(module).save(tmp_path, f"experiment/run/{model}/{name(0)}")
        assert found is not None
        references.append(found)
    files = [next(path for path in (tmp_path / each.name).parent.glob("frozen-*")) for each in references]
    assert files[0].samefile(files[1])
    assert not files[0].samefile(files[2])
    shutil.rmtree(files[0].parent)
    assert load(tmp_path, references[1], "cpu")["models"][0].keys() == network().state_dict().keys()


def test_a_damaged_base_of_another_model_is_not_shared(tmp_path: Path) -> None:
    references = []
    for model in ("m00", "m01"):
        folder = tmp_path / "run" / model
        folder.mkdir(parents=True)
        found = holder().save(tmp_path, f"run/{model}/{name(0)}")
        assert found is not None
        references.append(found)
        if model == "m00":
            (base,) = folder.glob("frozen-*")
            base.write_bytes(bytes(base.stat().st_size))
    load(tmp_path, references[1], "cpu")
    with pytest.raises(CheckpointCorruptError):
        load(tmp_path, references[0], "cpu")


def test_a_restored_model_maps_its_frozen_weights(tmp_path: Path) -> None:
    """Frozen parameters lie in the base's pages; writing into one changes neither the file nor other models."""
    reference = saved(holder(), tmp_path, 0)
    one, other = hopped(tmp_path, reference), hopped(tmp_path, reference)
    addresses = {only(one)[0].weight.data_ptr(), only(other)[0].weight.data_ptr()}
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/frozen-" in line]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in maps]
    assert all(any(start <= address < stop for start, stop in spans) for address in addresses)
    with torch.no_grad():
        only(one)[0].weight.add_(1)
    assert torch.equal(only(other)[0].weight, network()[0].weight)
    assert torch.equal(load(tmp_path, reference, "cpu")["models"][0]["0.weight"], network()[0].weight)


def test_weights_tied_by_memory_stay_tied_after_a_hop(tmp_path: Path) -> None:
    """Two parameters that view one storage are copied into it, not mapped."""

    def tied() -> Any:
        module = network()
        module[1].weight.data = module[0].weight.data
        return module

    trainee = hopped(tmp_path, saved(holder(tied()), tmp_path, 0), tied())
    assert only(trainee)[0].weight.data_ptr() == only(trainee)[1].weight.data_ptr()
    assert all(
        torch.equal(tensor, tied().state_dict()[key]) for key, tensor in only(trainee).state_dict().items()
    )


def test_a_tensor_in_an_attribute_keeps_viewing_its_weight(tmp_path: Path) -> None:
    """A hop writes into memory that an attribute or a list of the module shares, instead of mapping it."""

    def aliased() -> Any:
        module = network()
        module[0].view = module[0].weight.detach()
        module[1].views = [module[1].weight.detach()]
        module[2].graph = torch.eye(3).to_sparse()
        return module

    reference, fresh = saved(holder(aliased()), tmp_path, 0), aliased()
    with torch.no_grad():
        fresh[0].weight.zero_()
        fresh[1].weight.zero_()
    module = only(hopped(tmp_path, reference, fresh))
    assert torch.equal(module[0].view, network()[0].weight)
    assert torch.equal(module[1].views[0], network()[1].weight)


def test_a_left_out_tensor_that_torch_does_not_take_is_an_error(tmp_path: Path) -> None:
    """Otherwise its memory would stay uninitialised."""
    checked = check(tmp_path, saved(holder(), tmp_path, 0))
    assert checked.layout is not None
    first = checked.layout.ranges[0]
    with MappedReader(checked) as reader:
        reader.seek(first.start)
        assert reader.readinto(bytearray(first.size)) == first.size
        with pytest.raises(RuntimeError, match="another order"):
            reader.readinto(bytearray(4))


# --- removal ------------------------------------------------------------------------------------


@pytest.mark.slow
@given(data=st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_base_is_removed_with_its_last_reference(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After each commit all retained files are readable, and each frozen-weights file is referenced.

    Changes, retained checkpoints and lost attempts are random.
    """
    root = tmp_path_factory.mktemp("model")
    module = network(5, trained=5)
    kept: list[CheckpointRef] = []
    newest: CheckpointRef | None = None
    reference: CheckpointRef | None = None
    for sub_epoch in range(data.draw(st.integers(1, 6))):
        for attempt in range(1, 1 + data.draw(st.integers(1, 2))):
            trainee = (
                holder(copy.deepcopy(module))
                if newest is None
                else hopped(root, newest, copy.deepcopy(module))
            )
            for layer in list(only(trainee))[:5]:
                layer.requires_grad_(not data.draw(st.booleans()))
                if data.draw(st.integers(0, 4)) == 0:
                    layer.weight.data += 1
            reference = trainee.save(root, name(sub_epoch, attempt))
            assert reference is not None
        assert reference is not None
        outdated_files = outdated(root, sub_epoch, {each.name for each in kept})
        for path in outdated_files:
            path.unlink()
        newest = reference
        for each in (*kept, newest):
            load(root, each, "cpu")
        named = {
            layout.base for path in root.iterdir() if not is_base(path.name) and (layout := _layout_at(path))
        }
        assert named == set(bases(root))
        kept = [each for each in (*kept, newest) if each == newest or data.draw(st.booleans())]


def _layout_at(path: Path) -> Layout | None:
    with path.open("rb") as file:
        return layout_of(file)


# --- for users --------------------------------------------------------------------------------------


def test_users_get_a_checkpoint_as_one_file(tmp_path: Path) -> None:
    """It is created once, verified each time, and works from a mounted volume."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")})
    volumes.checkpoints.mkdir(parents=True)
    trainee = holder()
    reference = saved(trainee, volumes.checkpoints, 0)
    files = MountedFiles(volumes, tmp_path / "cache")
    path = files.merged(reference)
    expected = save(tmp_path, "plain", trainee.state())
    assert path.read_bytes() == (tmp_path / expected.name).read_bytes()
    modified_ns = path.stat().st_mtime_ns
    assert files.merged(reference).stat().st_mtime_ns == modified_ns
    path.write_bytes(b"damaged")
    assert files.merged(reference).stat().st_size == reference.size
    damaged_bases()["cut"](volumes.checkpoints / bases(volumes.checkpoints)[0])
    path.unlink()
    with pytest.raises(CheckpointCorruptError):
        files.merged(reference)
    assert not path.exists()

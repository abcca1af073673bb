"""A hop of a model of 1.5 billion parameters in bfloat16: save from the device, load to it, continue to train."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.gpu.section import GB, Row, Setting, part
from cerebro.worker.training.checkpoints import checkpoint
from cerebro.worker.training.checkpoints.storable import state_bytes
from cerebro.worker.training.sub_epoch import restore
from cerebro.worker.training.tracked_checkpoint import Checkpoint
from cerebro.worker.training.trainee import Trainee

_ROUNDS = 2


def measure(setting: Setting) -> Iterator[Row]:
    """Hop the weights alone, then with Adam's state if time allows, then train after a hop."""
    (setting.folder / "model").mkdir()
    yield from part(setting, "steps after a hop", 15, partial(_steps_after_hop, setting))
    size = (1024, 8) if setting.is_small else (8192, 22)
    weights = partial(_hop, setting, *size, with_moments=False)
    yield from part(setting, "hop of the weights", 35, weights)
    everything = partial(_hop, setting, *size, with_moments=True, rounds=1)
    yield from part(setting, "hop with Adam's state", 60, everything)


def _hop(
    setting: Setting, side: int, layers: int, *, with_moments: bool, rounds: int = _ROUNDS
) -> Iterator[Row]:
    trainee, other = (_trainee(setting, side, layers, with_moments=with_moments) for _ in range(2))
    size = state_bytes(trainee.state())
    saves, loads, peaks = [], [], []
    for number in range(rounds):
        name = f"model/u{number}.pt"
        setting.synchronize()
        began = time.perf_counter()
        reference = checkpoint.save(setting.folder, name, trainee.state())
        saves.append(time.perf_counter() - began)
        other.checkpoint.clear()
        before = _reset_peak(setting)
        began = time.perf_counter()
        restore(other, checkpoint.load(setting.folder, reference, setting.device))
        setting.synchronize()
        loads.append(time.perf_counter() - began)
        peaks.append(_peak(setting) - before)
        (setting.folder / name).unlink()
    is_equal = _are_equal(trainee, other)
    parameters = side * side * layers / 1e9
    what = f"{parameters:.2f} billion parameters in bfloat16{', Adam' if with_moments else ''}: {size / GB:.1f} GB"
    raw_write_s, raw_read_s = _raw(setting.folder / "raw", size)
    del trainee, other
    for verb, seconds, raw_s in (("save", min(saves), raw_write_s), ("load", min(loads), raw_read_s)):
        raw = "writing and flushing" if verb == "save" else "reading"
        yield Row(
            what=f"{verb} {what}",
            measured=f"{seconds:.2f} s, {size / GB / seconds:.2f} GB/s; {raw} as many bytes {raw_s:.2f} s",
            values={"seconds": seconds, "bytes": size, "raw_s": raw_s},
        )
    yield Row(
        what="the loaded state equals the saved one",
        measured=f"memory of the device while loading: {max(peaks) / GB:.1f} GB more than the model",
        values={"peak_bytes": max(peaks)},
        holds=is_equal,
    )


def _trainee(setting: Setting, side: int, layers: int, *, with_moments: bool) -> Trainee:
    options = {"dtype": torch.bfloat16, "device": setting.device}
    module = nn.Sequential(*(nn.Linear(side, side, bias=False, **options) for _ in range(layers)))
    if not with_moments:
        return Trainee(modules=[module])
    moments = {
        number: {"step": torch.tensor(3.0)}
        | {which: torch.randn_like(parameter) for which in ("exp_avg", "exp_avg_sq")}
        for number, parameter in enumerate(module.parameters())
    }
    return Trainee(modules=[module], checkpoint=Checkpoint({"optimizer": moments}))


def _are_equal(one: Trainee, other: Trainee) -> bool:
    tensors = [
        list(_tensors(each.state()["models"])) + list(_tensors(dict(each.checkpoint)))
        for each in (one, other)
    ]
    return len(tensors[0]) == len(tensors[1]) > 0 and all(
        torch.equal(a.cpu() if a.dim() == 0 else a, b.cpu() if b.dim() == 0 else b)
        for a, b in zip(*tensors, strict=True)
    )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)


def _raw(path: Path, size: int) -> tuple[float, float]:
    """Return the seconds of writing and flushing the same bytes, and of reading them."""
    block = os.urandom(1 << 20) * 64
    began = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        for start in range(0, size, len(block)):
            file.write(memoryview(block)[: min(len(block), size - start)])
        os.fsync(file.fileno())
    written = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(len(block))
        while file.readinto(buffer):
            pass
    read = time.perf_counter()
    path.unlink()
    return written - began, read - written


# --- steps after a hop --------------------------------------------------------------------------------------


def _steps_after_hop(setting: Setting) -> Iterator[Row]:
    """Compare Adam's steps of a new model with many parameters and of a saved and loaded one."""
    seconds: list[float] = []
    finals: list[list[torch.Tensor]] = []
    for has_hop in (False, True):
        trainee = _small(setting)
        for sub_epoch in range(2):
            if has_hop and sub_epoch:
                reference = checkpoint.save(setting.folder, "model/small.pt", trainee.state())
                trainee = _small(setting)
                restore(trainee, checkpoint.load(setting.folder, reference, setting.device))
                (setting.folder / reference.name).unlink()
            step_s = _train(setting, trainee, seed=sub_epoch)
            if sub_epoch:
                seconds.append(step_s)
        finals.append([each.detach().cpu() for each in trainee.modules[0].parameters()])
    plain, hopped = seconds
    yield Row(
        what=f"a step of Adam after a hop, against one without a hop ({_depth(setting)} layers)",
        measured=f"{1e3 * hopped:.2f} ms, {1e3 * plain:.2f} ms without",
        values={"step_s": hopped, "plain_s": plain},
        holds=hopped < 1.5 * plain if setting.is_gpu else None,
    )
    yield Row(
        what="weights after a hop equal weights without a hop, to the bit",
        measured="compared after two sub-epochs",
        values={},
        holds=_same_bits(*finals),
    )


def _same_bits(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _depth(setting: Setting) -> int:
    return 8 if setting.is_small else 128


def _small(setting: Setting) -> Trainee:
    torch.manual_seed(1)
    layers = [layer for _ in range(_depth(setting)) for layer in (nn.Linear(128, 128), nn.LayerNorm(128))]
    return Trainee(modules=[nn.Sequential(*layers).to(setting.device)])


def _train(setting: Setting, trainee: Trainee, *, seed: int) -> float:
    """Train like user code, and return the seconds of a step."""
    (module,) = trainee.modules
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    trainee.checkpoint.track(optimizer=optimizer)
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(64, 128, generator=generator).to(setting.device)

    def steps(count: int) -> None:
        for _ in range(count):
            loss = module(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    count = 10 if setting.is_small else 50
    steps(5)
    seconds = setting.seconds(lambda: steps(count))
    trainee.checkpoint.settle()
    return seconds / count


def _reset_peak(setting: Setting) -> int:
    if not setting.is_gpu:
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak(setting: Setting) -> int:
    return torch.cuda.max_memory_allocated() if setting.is_gpu else 0

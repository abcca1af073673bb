"""Fine-tuning with adapters: bytes per hop, and memory of four models on a worker, against full copies.

Each model has 6 frozen layers of 17 MB and low-rank adapters with Adam's state. A hop counts the bytes of a checkpoint
that only this checkpoint needs. For the memory, four processes load four models at the same time and train a step.
Their memory (PSS) beyond the memory before loading is compared with four processes that read everything into private
memory. The processes use the memory settings of a worker's children. Rounds alternate.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.figure import Figure
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.runtime.usage.memory import trim_heap
from cerebro.worker.agent.processes.allocator import tuned
from cerebro.worker.training.checkpoints import checkpoint
from cerebro.worker.training.sub_epoch import restore
from cerebro.worker.training.tracked_checkpoint import Checkpoint
from cerebro.worker.training.trainee import Trainee

BYTES_BAR, MEMORY_BAR = 0.05, 0.4
MODELS, ROUNDS = 4, 1
LAYERS, WIDTH, RANK = 6, 2048, 8


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map shape (rows, WIDTH) to the same shape."""
        hidden: Tensor = torch.relu(self.frozen(inputs)) + self.up(self.down(inputs))
        return hidden


def make() -> Trainee:
    """Create a model; the frozen layers are always the same."""
    torch.manual_seed(0)
    return Trainee(modules=[nn.Sequential(*(Adapted() for _ in range(LAYERS)))])


def train(trainee: Trainee) -> None:
    """Train a step with Adam, and keep its state."""
    module = trainee.modules[0]
    adapters = [each for each in module.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(adapters, lr=1e-3)
    torch.autograd.backward(module(torch.rand(4, WIDTH)).square().mean())
    optimizer.step()
    trainee.checkpoint = Checkpoint({"optimizer": optimizer.state_dict()})


def benchmark() -> list[Figure]:
    """Measure both."""
    found = measure()
    return [
        Figure(
            what="adapters: bytes of a hop over bytes of a full checkpoint",
            measured=f"{found['hop_mb']:.1f} MB, full {found['full_mb']:.0f} MB",
            ratio=found["hop_mb"] / found["full_mb"],
            bar=BYTES_BAR,
            sense="at most",
        ),
        Figure(
            what=f"adapters: memory of {MODELS} models on a worker over {MODELS} full copies",
            measured=f"{found['shared_mb']:.0f} MB, copies {found['copies_mb']:.0f} MB",
            ratio=found["ratio"],
            bar=MEMORY_BAR,
            sense="at most",
        ),
    ]


def measure() -> dict[str, float]:
    """Return megabytes of a hop and in memory, and the median ratio of memory."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        root, references = Path(name), list[CheckpointRef]()
        for model in range(MODELS):
            trainee = make()
            trainee.frozen.is_wanted = True
            train(trainee)
            folder = f"bench/fit-1/m{model:02d}"
            (root / folder).mkdir(parents=True)
            reference = trainee.save(root, f"{folder}/u00000-e001-p0000-a1.pt")
            assert reference is not None
            references.append(reference)
        memory: dict[str, list[float]] = {"shared": [], "copies": []}
        for number in range(ROUNDS):
            for side in ("shared", "copies") if number % 2 else ("copies", "shared"):
                memory[side].append(_memory(root, references, side))
        return {
            "hop_mb": statistics.median((root / each.name).stat().st_size for each in references) / 1e6,
            "full_mb": references[0].size / 1e6,
            "shared_mb": statistics.median(memory["shared"]),
            "copies_mb": statistics.median(memory["copies"]),
            "ratio": statistics.median(
                a / b for a, b in zip(memory["shared"], memory["copies"], strict=True)
            ),
        }


def _memory(root: Path, references: list[CheckpointRef], side: str) -> float:
    """Return the megabytes that loading and training the models took, in one process per model."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **tuned(dict(os.environ), 8 << 30)}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.adapters", str(root), each.model_dump_json(), side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for each in references
    ]
    try:
        before = sum(_answer(child) for child in children)  # all have imported
        for child in children:
            _go(child)
        for child in children:
            _answer(child)  # all have trained
        for child in children:
            _go(child)
        return sum(_answer(child) for child in children) - before
    finally:
        for child in children:
            child.communicate()


def _answer(child: Any) -> float:
    line: str = child.stdout.readline()
    return float(line)


def _go(child: Any) -> None:
    child.stdin.write("\n")
    child.stdin.flush()


def _child(root: Path, reference: CheckpointRef, side: str) -> None:
    train(Trainee(modules=[nn.Sequential(Adapted())]))  # loads torch's libraries
    trim_heap()
    print(_pss_mb(), flush=True)
    sys.stdin.readline()
    trainee = make()
    checked = checkpoint.check(root, reference)
    restore(trainee, checkpoint.read(checked, "cpu", maps_base=side == "shared"))
    train(trainee)
    trim_heap()  # on both sides: freed memory is no copy
    print(0, flush=True)
    sys.stdin.readline()
    print(_pss_mb(), flush=True)


def _pss_mb() -> float:
    found = re.search(r"^Pss: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), flags=re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1000


if __name__ == "__main__":
    _child(Path(sys.argv[1]), CheckpointRef.model_validate_json(sys.argv[2]), sys.argv[3])

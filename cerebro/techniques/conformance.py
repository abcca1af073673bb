"""The kit that every technique passes before it is trusted: `check` trains small models by it, in processes of its own.

What is checked, on so many ranks of this machine:

- *gradient*: at the first step of the optimizer it is the gradient of one device;
- *hops*: sub-epochs by the technique, before and after sub-epochs on one device, train the model that one device
  trains;
- *files*: a state that is restored and saved again is the same to the bit, under the same names;
- *failing rank*: where one rank raises, no rank says that the sub-epoch is done.

Runs `cerebro.worker.training.conforming`, by its name: what trains lies above this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cerebro.errors import SpecError
from cerebro.spec import SubEpochSpec
from cerebro.techniques.base import Params, Technique

_PROGRAM = "cerebro.worker.training.conforming"
_POLL_S = 0.05
_START_S = 300.0
"""How long ranks may take to import what they need, whatever the limit of a check."""


def check(
    technique: Technique,
    spec: SubEpochSpec | None = None,
    rows: Sequence[tuple[Any, Any]] | None = None,
    hyperparams: Mapping[str, Any] | None = None,
    *,
    size: int | None = None,
    params: Params | None = None,
    device: str = "cpu",
    limit_s: float = 300.0,
) -> None:
    """Train a model by a technique and on one device, and compare.

    Args:
        spec: whose `create_models` and `train` are used, without dropout. Left out: a small one with an optimizer that
            has a state, and clipped gradients.
        rows: what a row preprocessor returns for them: (input, output) each.
        hyperparams: of the model, with ``batch_size``.
        size: number of devices; left out: the least that the technique can use, or 2.
        params: of the technique; left out: those that it has fixed.
        device: ``"cpu"``, or ``"cuda"`` for as many GPUs.
        limit_s: after so long, with no check done meanwhile, ranks are taken to wait for each other in vain. It counts
            from when all have begun the first one.

    Raises:
        SpecError: the technique does not conform, with what was found on which rank.
    """
    if (spec is None) != (rows is None):
        raise SpecError("check() takes a spec together with rows for it, or neither")
    size = size if size is not None else max(technique.least, min(2, technique.most))
    request = {
        "technique": technique,
        "params": dict(technique.fixed if params is None else params),
        "spec": spec,
        "rows": rows,
        "hyperparams": dict(hyperparams or {"batch_size": 5}),
        "size": size,
        "device": device,
    }
    processes = size if technique.processes == "ranks" else 1
    with tempfile.TemporaryDirectory(prefix="cerebro-conformance-") as name:
        problems = _run(Path(name), _encoded(request), processes, limit_s)
    if problems:
        told = "\n".join(f"- {problem}" for problem in problems)
        raise SpecError(f"technique {technique.name!r} does not conform on {size} devices:\n{told}")


def _encoded(request: Mapping[str, Any]) -> bytes:
    import cloudpickle

    encoded: bytes = cloudpickle.dumps(request)
    return encoded


def _run(folder: Path, request: bytes, processes: int, limit_s: float) -> list[str]:
    """Start the ranks, follow them, and end them; returns what is wrong."""
    (folder / "request").write_bytes(request)
    errors = [(folder / f"errors-{rank}").open("w+") for rank in range(processes)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", _PROGRAM, str(folder), str(rank), str(processes)], stderr=errors[rank]
        )
        for rank in range(processes)
    ]
    try:
        _follow(folder, started, limit_s)
        late = [rank for rank, process in enumerate(started) if process.poll() is None]
    finally:
        for process in started:
            process.kill()
            process.wait()
    told = [_told(folder, rank) for rank in range(processes)]
    problems = [f"rank {rank}, {at}: {text}" for rank, lines in enumerate(told) for at, text in lines if text]
    for rank in late:
        at = told[rank][-1][0] if told[rank] else "start"
        problems.append(f"rank {rank} never came to the end of {at!r}, {limit_s:g} s long")
    for rank, (process, file) in enumerate(zip(started, errors, strict=True)):
        if not problems and process.returncode:
            file.seek(0)
            problems.append(
                f"the process of rank {rank} ended with status {process.returncode}: {file.read()[-2000:]}"
            )
        file.close()
    return problems


def _follow(folder: Path, started: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait until all have ended, or for as long as they get on."""
    seen, since, most_s = 0, time.monotonic(), _START_S
    while any(process.poll() is None for process in started) and time.monotonic() - since < most_s:
        counts = [len(_told(folder, rank)) for rank in range(len(started))]
        if sum(counts) > seen:
            seen, since = sum(counts), time.monotonic()
        have_begun = all(n or process.poll() is not None for n, process in zip(counts, started, strict=True))
        most_s = limit_s if have_begun else _START_S
        time.sleep(_POLL_S)


def _told(folder: Path, rank: int) -> list[tuple[str, str]]:
    """What a rank has written: the name of each check when it began, and what was found."""
    try:
        lines = (folder / f"told-{rank}").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [tuple(json.loads(line)) for line in lines]

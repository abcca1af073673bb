"""A test kit for techniques: `check` trains small models in separate processes.

Authors of a technique call it, and `cerebro.client.dry_run`. It uses ranks on this machine only and leaves no files. It
checks:

- *gradient*: at the first optimizer step it equals a single device's gradient;
- *hops*: sub-epochs by the technique, before and after sub-epochs on one device, train the same model as one device;
- *files*: a state that is restored and saved again is bitwise equal, under the same names;
- *failing rank*: if one rank raises, no rank reports success.

The ranks run `cerebro.worker.training.ranks.conformance`, which is in a higher layer and so is started by name.
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

_PROGRAM = "cerebro.worker.training.ranks.conformance"
_POLL_S = 0.05
_START_S = 300.0
"""Seconds that ranks may take for imports."""


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
        technique: the technique to check.
        spec: spec with `create_models` and `train`, without dropout. Default: a small model, an optimizer with state
            and gradient clipping.
        rows: (input, output) rows, as a row preprocessor returns them.
        hyperparams: hyperparameters of the model, with `batch_size`. Default: `{"batch_size": 5}`.
        size: number of devices. Default: 2, within the technique's limits.
        params: parameters of the technique. Default: its fixed parameters.
        device: `"cpu"`, or `"cuda"` for `size` GPUs.
        limit_s: seconds without progress before the ranks count as deadlocked, measured from the first check.

    Raises:
        SpecError: the technique does not conform; the message lists the problems of each rank.
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
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise SpecError(f"technique {technique.name!r} does not conform on {size} devices:\n{listed}")


def _encoded(request: Mapping[str, Any]) -> bytes:
    import cloudpickle

    encoded: bytes = cloudpickle.dumps(request)
    return encoded


def _run(folder: Path, request: bytes, processes: int, limit_s: float) -> list[str]:
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
    records = [_records(folder, rank) for rank in range(processes)]
    problems = [
        f"rank {rank}, {at}: {text}" for rank, lines in enumerate(records) for at, text in lines if text
    ]
    for rank in late:
        at = records[rank][-1][0] if records[rank] else "start"
        problems.append(f"rank {rank} made no progress in {at!r} for {limit_s:g} s")
    for rank, (process, file) in enumerate(zip(started, errors, strict=True)):
        if not problems and process.returncode:
            file.seek(0)
            problems.append(
                f"the process of rank {rank} ended with status {process.returncode}: {file.read()[-2000:]}"
            )
        file.close()
    return problems


def _follow(folder: Path, started: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait while the ranks make progress."""
    num_records, since, current_limit_s = 0, time.monotonic(), _START_S
    while any(process.poll() is None for process in started) and time.monotonic() - since < current_limit_s:
        counts = [len(_records(folder, rank)) for rank in range(len(started))]
        if sum(counts) > num_records:
            num_records, since = sum(counts), time.monotonic()
        have_begun = all(n or process.poll() is not None for n, process in zip(counts, started, strict=True))
        current_limit_s = limit_s if have_begun else _START_S
        time.sleep(_POLL_S)


def _records(folder: Path, rank: int) -> list[tuple[str, str]]:
    """Return a rank's records: the name of each started check, and its problem or ""."""
    try:
        lines = (folder / f"records-{rank}").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [tuple(json.loads(line)) for line in lines]

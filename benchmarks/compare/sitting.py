"""One sitting on this machine: each method trains the same models once per round, in a different order each time."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.compare import ours, task
from benchmarks.compare.contenders import Outcome
from cerebro.worker.agent.processes import allocator

ROWS, ROUNDS = 60_000, 2
_LIMIT_S = 1200.0

RAY_PYTHON = Path(sys.prefix) / "ray" / "bin" / "python"
"""Python of the environment with Ray, which also sees this environment's torch; `make compare` creates it."""


class Method(NamedTuple):
    """A method of training the models.

    Attributes:
        name: name for people.
        program: program in `contenders`; "" for Cerebro.
        allocator: True to set its C allocator like Cerebro's workers.
    """

    name: str
    program: str
    allocator: bool = False


METHODS = {
    "cerebro": Method("Cerebro", ""),
    "cerebro-again": Method("Cerebro, a second fit: its processes are there", ""),
    "task-parallel": Method("Task-parallel processes", "task-parallel"),
    "task-parallel-tuned": Method(
        "Task-parallel processes, C allocator as Cerebro sets it", "task-parallel", True
    ),
    "ray-tune": Method("Ray Tune", "ray-tune"),
    "ray-tune-tuned": Method("Ray Tune, C allocator as Cerebro sets it", "ray-tune", True),
    "averaging": Method("Model averaging", "averaging"),
    "ddp": Method(f"DDP, batches of {task.BATCH} in all", "ddp"),
    "ddp-larger-batch": Method(f"DDP, batches of {task.BATCH} for each rank", "ddp-larger-batch"),
    "parameter-server": Method("Asynchronous parameter server", "parameter-server"),
}
"""The compared methods."""


@dataclass(frozen=True, kw_only=True)
class Sitting:
    """Measurements of one sitting.

    Attributes:
        outcomes: method -> its outcome in each round, without methods that could not run.
        rows: number of training rows.
        date, load: time of the sitting, and the load average before and after it.
    """

    outcomes: dict[str, list[Outcome]]
    rows: int
    date: datetime.date
    load: tuple[float, float]

    def seconds(self, method: str) -> float:
        """Return the median seconds over the rounds."""
        return statistics.median(outcome["seconds"] for outcome in self.outcomes[method])

    def held(self, method: str) -> int:
        """Return the maximum bytes of training rows in a worker's memory."""
        return max(outcome["held"] for outcome in self.outcomes[method])

    def ratio(self, method: str) -> float:
        """Return the median ratio of the method's time to Cerebro's first fit."""
        pairs = zip(self.outcomes[method], self.outcomes["cerebro"], strict=True)
        return statistics.median(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs)


def measure(
    methods: Sequence[str] = tuple(METHODS),
    *,
    rows: int = ROWS,
    rounds: int = ROUNDS,
    rates: Sequence[float] = task.RATES,
    tell: Callable[[str], None] = lambda line: None,
) -> Sitting:
    """Run each method in each round, and a second fit after each first one; Ray Tune only if installed.

    Args:
        tell: gets a line with the time of each method.
    """
    turns = [
        method
        for method in methods
        if method != "cerebro-again" and (RAY_PYTHON.exists() or "ray" not in method)
    ]
    outcomes: dict[str, list[Outcome]] = {
        method: [] for method in methods if method in turns or method == "cerebro-again"
    }
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cerebro-compare-") as folder:
        root = Path(folder)
        task.write(root, rows)
        for turn in range(rounds):
            start = turn * len(turns) // rounds
            for method in turns[start:] + turns[:start]:
                found = (
                    {method: contender(METHODS[method], root, rates)}
                    if METHODS[method].program
                    else _ours(root, rows, rates, again="cerebro-again" in outcomes)
                )
                for name, outcome in found.items():
                    outcomes[name].append(outcome)
                    tell(
                        f"round {turn + 1}, {name}: {outcome['seconds']:.1f} s, load {os.getloadavg()[0]:.1f}"
                    )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return Sitting(outcomes=outcomes, rows=rows, date=today, load=(before, os.getloadavg()[0]))


def _ours(root: Path, rows: int, rates: Sequence[float], *, again: bool) -> dict[str, Outcome]:
    with ours.preprocessed(root, rows) as experiment:
        found = {"cerebro": ours.fit(experiment, root, list(rates))}
        if again:
            found["cerebro-again"] = ours.fit(experiment, root, list(rates))
    return found


def contender(method: Method, root: Path, rates: Sequence[float]) -> Outcome:
    """Run another method's program on the rows that `task.write` put below `root`.

    Raises:
        RuntimeError: the program failed; the message has its last output.
    """
    python = str(RAY_PYTHON) if method.program == "ray-tune" else sys.executable
    with tempfile.TemporaryDirectory(dir=root) as into:
        environment = {**os.environ, "PYTHONPATH": str(ours.REPOSITORY), "HOME": into}  # Ray writes there
        for name in allocator.DECIDED_BY_USER:
            environment.pop(name, None)
        if method.allocator:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            environment |= allocator.tuned(environment, memory)
        module = "benchmarks.compare.contenders"
        done = subprocess.run(
            [python, "-m", module, method.program, str(root), json.dumps(list(rates)), into],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            cwd=into,
            env=environment,
        )
    if done.returncode:
        raise RuntimeError(f"{method.name} failed:\n{done.stderr[-4000:]}")
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome

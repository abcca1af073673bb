"""One sitting: each method of training the same models once per round, in another order each time, on this machine."""

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
"""Of the environment that has Ray, and behind it this one's torch; `make compare` makes it."""


class Method(NamedTuple):
    """A method of training the models.

    Attributes:
        name: for people.
        program: of `contenders`; empty for Cerebro.
        allocator: whether its C allocator is set as Cerebro sets that of its workers.
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
"""Those that are compared."""


@dataclass(frozen=True, kw_only=True)
class Sitting:
    """What was measured.

    Attributes:
        outcomes: method -> its outcome in each round. A method that could not be run is missing.
        rows: that were trained on.
        date, load: when, and the load average before the first one and after the last one.
    """

    outcomes: dict[str, list[Outcome]]
    rows: int
    date: datetime.date
    load: tuple[float, float]

    def seconds(self, method: str) -> float:
        """Median over the rounds."""
        return statistics.median(outcome["seconds"] for outcome in self.outcomes[method])

    def held(self, method: str) -> int:
        """Bytes of training rows in a worker's memory, the most of the rounds."""
        return max(outcome["held"] for outcome in self.outcomes[method])

    def ratio(self, method: str) -> float:
        """How many times as long as Cerebro's first fit it took: the median of the rounds' ratios."""
        pairs = zip(self.outcomes[method], self.outcomes["cerebro"], strict=True)
        return statistics.median(theirs["seconds"] / own["seconds"] for theirs, own in pairs)


def measure(
    methods: Sequence[str] = tuple(METHODS),
    *,
    rows: int = ROWS,
    rounds: int = ROUNDS,
    rates: Sequence[float] = task.RATES,
    tell: Callable[[str], None] = lambda line: None,
) -> Sitting:
    """Each of the methods in each round; Ray Tune only where it is installed, a second fit after each first one.

    Args:
        tell: is told what each took, a line each.
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
    """One of the other methods, as its program, on the rows that `task.write` has put below `root`.

    Raises:
        RuntimeError: the program failed; with what it wrote last.
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
    told: Outcome = json.loads(done.stdout.splitlines()[-1])
    return told

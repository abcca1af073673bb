"""Writes the tables and pictures of docs/scheduling.md: ``make scheduling``.

It replaces the text between the markers ``<!-- generated: NAME -->`` and ``<!-- end -->``, and takes some minutes. Only
seconds, and results of solvers with a time limit, differ from run to run.
`tests/research/test_docs_scheduling.py` checks that markers, names and pictures fit together.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.conditions import Reality
from cerebro.scheduling.dispatch import CALM, dispatch
from cerebro.scheduling.exact import solve_exact
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.validator import validate
from research import core_simulation
from research.baselines import BASELINES, by_policy
from research.command import slug
from research.comparison import Row, compare
from research.gangs import Training, sub_clusters, with_gangs
from research.gantt import draw
from research.problems import open_shop
from research.rearrangement import rearrange
from research.scenarios import SCENARIOS, find

TARGET = Path(__file__).resolve().parent / "scheduling.md"
PICTURES = TARGET.with_suffix("")
SECTION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)

_SEEDS = 5
_PRINTED: dict[str, dict[str, float]] = {
    "thesis-4.1": {"Multi-GPU MOP": 15926, "Random scheduler": 8603, "cp-sat": 7967},
    "thesis-4.2": {"Multi-GPU MOP": 7780, "Random scheduler": 5252, "cp-sat": 5255.36},
    "thesis-4.3": {"Multi-GPU MOP": 10172, "Random scheduler": 8956, "cp-sat": 8994.59},
}
"""Makespans in figures 4.1 to 4.3 of the thesis. `cp-sat` is its Cerebro-MILP, also an exact solver."""
_PAPER = [
    f"paper-{kind}-{models}x{workers}"
    for kind in ("hom", "het")
    for models in (16, 256)
    for workers in (8, 16)
]
_ONLINE = ("online-noise-32x16", "online-outage-32x16", "online-join-32x16", "online-straggler-32x16")


def render(text: str) -> str:
    """Generate all parts, write the pictures, and return the new text."""
    return SECTION.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


# --- the parts ----------------------------------------------------------------------------------


def _measured() -> str:
    date = datetime.datetime.now(tz=datetime.UTC).date()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = cpu[1] if cpu else platform.machine()
    return (
        f"Measured on {date}, one core of {os.cpu_count()} ({name}), Python {platform.python_version()}. "
        f"Seeds 0 to {_SEEDS - 1}.\n"
    )


def _thesis() -> str:
    cells = []
    for name, printed in _PRINTED.items():
        for row in compare(find(name), [*printed, "lrptw", "planner"], seeds=_SEEDS):
            cells.append((name, _called(row), _number(printed.get(row.scheduler)), *_figures(row)))
            if row.scheduler in printed:
                _picture(name, row)
    return _table(("scenario", "scheduler", "printed, s", *_HEADS), cells)


def _sublinear() -> str:
    cells = []
    for name in (f"{name}-sublinear" for name in _PRINTED):
        names = ("Multi-GPU MOP", "Random scheduler", "lrptw", "planner", "cp-sat")
        for row in compare(find(name), names, time_limit_s=60.0):
            cells.append((name, _called(row), *_figures(row)))
            if (name, row.scheduler) == ("thesis-4.3-sublinear", "cp-sat"):
                _picture(name, row)
    return _table(("scenario", "scheduler", *_HEADS), cells)


def _paper() -> str:
    cells = []
    for name in _PAPER:
        rows = compare(find(name), ("random", "fifo", "cyclic", "lrptw", "planner"), seeds=_SEEDS)
        ratios = [f"{row.ratio.mean:.4f} ({row.ratio.max:.3f})" for row in rows]
        cells.append(
            (name, *ratios, f"{_rearranged(name):.4f}", *(f"{row.seconds.mean:.2f}" for row in rows[-2:]))
        )
        if name in ("paper-hom-16x16", "paper-het-16x8"):
            _picture(name, rows[0])
            _picture(name, rows[-1])
    heads = ("random", "fifo", "cyclic", "lrptw", "planner", "rearrangement", "lrptw, s", "planner, s")
    return _table(("scenario", *heads), cells)


def _rearranged(name: str) -> float:
    """Mean ratio of vector rearrangement, which draws nothing: over the problems of the seeds."""
    ratios = []
    for seed in range(_SEEDS):
        problem = find(name).problem(seed)
        ratios.append(1 + validate(problem, rearrange(problem)).check().gap)
    return sum(ratios) / len(ratios)


def _hard() -> str:
    cells = []
    for name in (
        "hard-narrow-8x8",
        "hard-narrow-16x16",
        "hard-balanced-20x16",
        "few-4x8",
        "replicated-16x8",
        "epochs-16x8",
    ):
        rows = compare(find(name), ("random", "cyclic", "lrptw", "planner"), seeds=_SEEDS)
        ratios = [f"{row.ratio.mean:.4f} ({row.ratio.max:.3f})" for row in rows]
        cells.append((name, *ratios, f"{rows[-1].seconds.mean:.2f}"))
        if name == "hard-narrow-16x16":
            _picture(name, rows[2])
            _picture(name, rows[3])
    return _table(("scenario", "random", "cyclic", "lrptw", "planner", "planner, s"), cells)


_TRAININGS = tuple(
    Training(name=f"{model}, {gbit} Gbit/s", batch_s=s, gradient_bytes=size, bytes_per_s=gbit * 125e6)
    for model, s, size in (("100 MB, 0.6 s", 0.6, 100e6), ("1.4 GB, 1 s", 1.0, 1.4e9))
    for gbit in (10, 100)
)
_SUB_EPOCH_S = 600.0


def _gangs() -> str:
    cells = []
    for training in _TRAININGS:
        speed_ups = ", ".join(f"{training.speed_up(members):.2f}" for members in (2, 4, 8))
        for models in (1, 2, 4, 6):
            problem = with_gangs(open_shop([[_SUB_EPOCH_S] * 8] * models), training)
            made = {f"of {size}": sub_clusters(problem, size) for size in (1, 2, 4, 8)}
            hours = {name: validate(problem, found).check().makespan / 3600 for name, found in made.items()}
            alone = hours.pop("of 1")
            best = min(hours, key=hours.__getitem__)
            idle = 1 - models * 8 * _SUB_EPOCH_S / (8 * alone * 3600)
            gain = f"{hours[best] / alone:.2f} ({best})" if hours[best] < alone else "none"
            bound = lower_bound(problem) / 3600
            cells.append(
                (
                    training.name,
                    speed_ups,
                    str(models),
                    f"{alone:.2f}",
                    f"{idle:.0%}",
                    *(f"{each:.2f}" for each in hours.values()),
                    f"{bound:.2f}",
                    gain,
                )
            )
    heads = (
        "gradients, batch, network",
        "speed-up of 2, 4, 8",
        "models",
        "hopping",
        "idle",
        *hours,
        "bound",
        "best",
    )
    return _table(heads, cells)


def _noisy() -> str:
    cells = []
    for name in ("hard-narrow-16x16", "paper-het-16x8", "paper-het-16x16"):
        for sigma in (0.05, 0.1, 0.3):
            rows = compare(find(name), ("random", "lrptw", "planner"), seeds=_SEEDS, sigma=sigma)
            cells.append((name, f"{sigma}", *(f"{row.ratio.mean:.4f} ({row.ratio.max:.3f})" for row in rows)))
    return _table(("scenario", "sigma", "random", "lrptw", "plan, followed strictly"), cells)


def _online() -> str:
    cells = []
    for name in _ONLINE:
        rows = compare(find(name), ("random", "fifo", "cyclic", "lrptw"), seeds=4 * _SEEDS)
        cells.append((name, *(f"{row.ratio.mean:.4f} ({row.ratio.max:.3f})" for row in rows)))
        if name == "online-outage-32x16":
            _picture(name, rows[-1])
    return _table(("scenario", "random", "fifo", "cyclic", "lrptw"), cells)


def _core() -> str:
    cells = []
    for name in ("paper-hom-16x16", "few-4x8", "hard-narrow-8x8", *_ONLINE, "paper-het-16x8"):
        scenario = find(name)
        problem = scenario.problem(0)
        conditions = scenario.conditions(problem) if scenario.conditions else CALM
        bound = lower_bound(problem) if conditions == CALM else Reality(problem, conditions, 0).bound()
        engine = dispatch(problem, POLICIES["lrptw"], conditions=conditions)
        core = core_simulation.run(problem, "lrptw", 0, conditions)
        for schedule in (engine, core):
            validate(problem, schedule, actual=True).check()
        ratios = (engine.makespan / bound, core.makespan / bound, core.makespan / engine.makespan)
        cells.append((name, *(f"{ratio:.4f}" for ratio in ratios)))
    return _table(("scenario", "engine", "core", "core / engine"), cells)


def _joint() -> str:
    cells = []
    for name in (name for name in SCENARIOS if name.startswith("saturn-")):
        problem = find(name).problem(0)
        means = [
            fmean(make(problem, seed).makespan for seed in range(4 * _SEEDS)) for make in BASELINES.values()
        ]
        planned = plan(problem, time_limit_s=2.0, clock=time.process_time)
        validate(problem, planned.schedule).check()
        solved = solve_exact(problem, time_limit_s=20.0, hint=by_policy(problem), solver="cp-sat")
        assert solved.schedule is not None, "the hint at least"
        made = planned.schedule.makespan
        best, bound = solved.schedule.makespan, max(solved.lower_bound, planned.lower_bound)
        hours = [f"{seconds / 3600:.2f}" for seconds in (*means, made, best, bound)]
        cells.append((name, *hours, f"{made / means[0]:.2f}", f"{made / best:.3f}"))
        if name == "saturn-img-4x8-hop":
            PICTURES.mkdir(exist_ok=True)
            drawn = {
                "current-practice": BASELINES["current practice"](problem, 0),
                "planner": planned.schedule,
            }
            for kind, schedule in drawn.items():
                title = f"{name}: {kind.replace('-', ' ')}"
                drawing = draw(problem, schedule, lower_bound=bound, title=title)
                (PICTURES / f"{name}-{kind}.svg").write_text(drawing)
    ends = ("plan, 2 s", "`cp-sat`", "bound", "plan / current", "plan / `cp-sat`")
    return _table(("scenario", *BASELINES, *ends), cells)


PARTS: dict[str, Callable[[], str]] = {
    "measured": _measured,
    "thesis": _thesis,
    "sublinear": _sublinear,
    "joint": _joint,
    "paper": _paper,
    "hard": _hard,
    "gangs": _gangs,
    "noisy": _noisy,
    "online": _online,
    "core": _core,
}

# --- their form ---------------------------------------------------------------------------------

_HEADS = ("makespan, s", "ratio", "worst", "made in, s")


def _figures(row: Row) -> tuple[str, ...]:
    proof = " (optimal)" if row.is_optimal else ""
    ratio, worst = row.ratio.mean, row.ratio.max
    return f"{row.makespan.mean:.0f}", f"{ratio:.4f}{proof}", f"{worst:.4f}", f"{row.seconds.mean:.2f}"


def _called(row: Row) -> str:
    return f"`{row.scheduler}`" if row.scheduler[0].islower() else row.scheduler


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


def _picture(scenario: str, row: Row) -> None:
    PICTURES.mkdir(exist_ok=True)
    trial, title = row.first, f"{scenario}: {row.scheduler}"
    drawing = draw(trial.problem, trial.schedule, lower_bound=trial.lower_bound, title=title)
    (PICTURES / f"{scenario}-{slug(row.scheduler)}.svg").write_text(drawing)


if __name__ == "__main__":
    TARGET.write_text(render(TARGET.read_text()))

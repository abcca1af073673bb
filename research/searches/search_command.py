"""``python -m research simulate search``: compare search procedures in the controller's own code."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cerebro.cli.parsing import count
from cerebro.contract.search import SAMPLERS
from cerebro.errors import InstanceError

if TYPE_CHECKING:
    from cerebro.client.search.requests import UserProcedure
    from cerebro.contract.search import SearchRequest
    from research.searches.searches import Outcome, Row

PROCEDURES = ("random", "hyperband", "asha", "asha-promotion", "pbt")
_WORKERS, _EPOCHS = 8, 27
_OPTIONS = ("procedure", "sampler", "workers", "samples", "epochs", "seed")
"""Options for searches only."""


def add_options(simulate: argparse.ArgumentParser) -> None:
    """Add the options of searches; other scenarios refuse them."""
    group = simulate.add_argument_group("searches", "with the scenarios search, search-noise and others")
    group.add_argument(
        "--procedure", action="append", choices=PROCEDURES, help="may be given several times (default: all)"
    )
    group.add_argument("--sampler", choices=[*SAMPLERS], help="of all but pbt (default: random)")
    group.add_argument("--workers", type=count, metavar="N", help=f"default: {_WORKERS}")
    group.add_argument(
        "--samples",
        type=count,
        metavar="N",
        help="models, of each procedure (default: about as many epochs as Hyperband's brackets take)",
    )
    group.add_argument(
        "--epochs", type=count, metavar="N", help=f"the most that a model is trained for (default: {_EPOCHS})"
    )
    group.add_argument("--seed", type=_seed, metavar="N", help="the first one of --seeds (default: 0)")


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


def check_unused(options: argparse.Namespace, scenario: str) -> None:
    """Check that no search option is given.

    Raises:
        InstanceError: a search option is given.
    """
    for name in _OPTIONS:
        if getattr(options, name) is not None:
            raise InstanceError(f"{scenario} is no search: leave out --{name}, or simulate `search`")


def simulate(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Yield a row for each procedure."""
    from research.searches.search_simulation import run
    from research.searches.searches import SCENARIOS, compare, lasting

    if options.policy or options.svg or options.sigma is not None or options.core:
        raise InstanceError(
            f"{name} compares search procedures, always by the controller's core: leave out --policy, --svg, --sigma "
            "and --core; --procedure and --sampler choose what is compared, search-noise has more noise"
        )
    scenario = SCENARIOS[name]
    workers, epochs = options.workers or _WORKERS, options.epochs or _EPOCHS
    if name == "search-join" and workers == 1:
        raise InstanceError("search-join has a worker that joins the others: give --workers 2 or more")
    sampler, first = options.sampler or "random", options.seed or 0
    seeds = range(first, first + options.seeds)
    requests = {
        procedure: _request(procedure, sampler, epochs=epochs, samples=options.samples)
        for procedure in dict.fromkeys(options.procedure or PROCEDURES)
    }
    found: dict[str, list[Outcome]] = {
        procedure: [
            lasting(scenario, workers, partial(run, request, epochs=epochs, workers=workers, seed=seed))
            for seed in seeds
        ]
        for procedure, request in requests.items()
    }
    rows = compare(found)
    if options.json:
        yield json.dumps({"scenario": name, "about": scenario.about, "rows": [*map(_row_json, rows)]})
        return
    yield f"{name}: {scenario.about}"
    yield (
        f"  {workers} workers, at most {epochs} epochs a model, sampler {sampler}, "
        f"seed{'s' * (len(seeds) > 1)} {_span(seeds)}; a typical epoch is 1 s of work"
    )
    yield from _table(rows, len(seeds))
    yield ""


# --- request ----------------------------------------------------------------------------------


def _request(procedure: str, sampler: str, *, epochs: int, samples: int | None) -> SearchRequest:
    """Build and validate the request like `run_fit`."""
    from cerebro.client.search.requests import search_request
    from cerebro.contract.search import SearchRequest

    wanted = samples or _samples(procedure, epochs)
    search = search_request(
        {**_space(), "batch_size": 1},
        search=_procedure(procedure, sampler, wanted),
        samples=None if procedure == "pbt" else wanted,
        epochs=epochs,
    )
    assert isinstance(search, SearchRequest)
    return search


def _space() -> Mapping[str, Any]:
    from cerebro.client.search import loguniform, randint, uniform
    from research.searches.searches import DECAYS, DROPOUTS, LAYERS, LEARNING_RATES, WIDTHS

    return {
        "lr": loguniform(*LEARNING_RATES),
        "decay": loguniform(*DECAYS),
        "dropout": uniform(*DROPOUTS),
        "layers": randint(*LAYERS),
        "width": randint(*WIDTHS),
    }


def _procedure(name: str, sampler: str, samples: int | None) -> UserProcedure:
    from cerebro.contract.search import ASHA, PBT, Hyperband, Random

    draws = SAMPLERS[sampler]()
    match name:
        case "random":
            return Random(sampler=draws)
        case "hyperband":
            return Hyperband(sampler=draws)
        case "asha":
            return ASHA(sampler=draws)
        case "asha-promotion":
            return ASHA(rule="promotion", sampler=draws)
        case _:
            return PBT(population=samples or PBT().population)


def _samples(procedure: str, epochs: int) -> int | None:
    """Return the number of models that cost as many epochs as Hyperband's brackets; `None` for Hyperband's default."""
    from cerebro.contract.search import ASHA
    from cerebro.search.procedures.rungs import bracket_sizes, rung_epochs

    if procedure == "hyperband":
        return None
    first, eta = ASHA().first, ASHA().eta
    levels = rung_epochs(first, eta, epochs)
    budget = sum(
        _cost(levels[start:], eta) * size for start, size in enumerate(bracket_sizes(len(levels), eta))
    )
    of_one = _cost(levels, eta) if procedure.startswith("asha") else epochs
    return max(eta, round(budget / of_one))


def _cost(levels: Sequence[int], eta: int) -> float:
    """Return the mean epochs of a model in a bracket: at each rung, one model in `eta` continues."""
    steps = zip((0, *levels), levels, strict=False)
    return sum((level - before) * float(eta) ** -rung for rung, (before, level) in enumerate(steps))


# --- output -----------------------------------------------------------------------------------


def _table(rows: Sequence[Row], seeds: int) -> Iterator[str]:
    cells: list[Sequence[str]] = [
        ("trials", "epochs", "busy", "while drawing", "makespan s", "best", "to best - 0.01 s", "seeds")
    ]
    for row in rows:
        to_best = row.median_to_best_s
        cells.append(
            (
                f"{row.trials:.0f}",
                f"{row.epochs:.0f}",
                f"{row.busy:.3f}",
                "" if row.busy_drawing is None else f"{row.busy_drawing:.3f}",
                f"{row.makespan_s:.1f}",
                f"{row.best:.4f}",
                f"{to_best:.1f}" if math.isfinite(to_best) else "never",
                f"{row.reached} of {seeds}",
            )
        )
    width = max(len(row.procedure) for row in rows)
    for procedure, numbers in zip(("", *(row.procedure for row in rows)), aligned(cells), strict=True):
        yield "  ".join([f"  {procedure:<{width}}", *numbers])


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "procedure": row.procedure,
        "trials": row.trials,
        "epochs": row.epochs,
        "busy": row.busy,
        "busy_drawing": row.busy_drawing,
        "makespan": row.makespan_s,
        "best": row.best,
        "to_best": [second if math.isfinite(second) else None for second in row.to_best_s],
    }


def _span(seeds: range) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield rows with right-aligned cells of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]

"""``python -m research simulate`` with searches: table rows, samplers and one-line errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cerebro.scheduling.conditions import Conditions
from research import command
from research.searches.searches import SCENARIOS, WITHIN, Outcome, compare, lasting

_SMALL = ("--workers", "2", "--epochs", "3", "--samples", "4")


def _rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert command.main(["simulate", *arguments, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return {row["procedure"]: row for row in json.loads(line)["rows"]}


@pytest.mark.slow
def test_one_table_lists_all_procedures(capsys: pytest.CaptureFixture[str]) -> None:
    """A row has the number of models, worker utilisation, makespan and time to a good model. A repeat gives
    the same rows."""
    arguments = ("search", *_SMALL, "--procedure", "asha", "--procedure", "pbt")
    assert command.main(["simulate", *arguments]) == 0
    heading, about, heads, asha, pbt, blank = capsys.readouterr().out.splitlines()
    assert heading.startswith("search: ")
    assert "2 workers, at most 3 epochs a model, sampler random, seed 0" in about
    for word in ("trials", "epochs", "busy", "makespan s", "to best - 0.01 s"):
        assert word in heads
    assert (asha.split()[0], pbt.split()[0], blank) == ("asha", "pbt", "")
    rows = _rows(capsys, *arguments)
    assert rows == _rows(capsys, *arguments)
    assert rows["asha"]["trials"] == 4
    assert rows["pbt"]["trials"] > 4  # PBT clones count as models
    assert f"{rows['asha']['makespan']:.1f}" in asha.split()
    for row in rows.values():
        assert 0 < row["busy"] <= 1
    assert any(second is not None for row in rows.values() for second in row["to_best"])


def test_samplers_draw_in_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    """CMA-ES differs from random sampling from the second generation on."""
    arguments = ("search", "--workers", "1", "--epochs", "2", "--samples", "10", "--procedure", "asha")
    at_random, drawn = _rows(capsys, *arguments), _rows(capsys, *arguments, "--sampler", "cma")
    assert drawn["asha"]["trials"] == at_random["asha"]["trials"] == 10
    assert drawn["asha"]["best"] != at_random["asha"]["best"]


def test_a_late_worker_lengthens_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    """The worker that joins after ten epochs has a partition that all models need."""
    arguments = (*_SMALL, "--procedure", "hyperband")
    calm, late = _rows(capsys, "search", *arguments), _rows(capsys, "search-join", *arguments)
    assert late["hyperband"]["makespan"] >= 10 > calm["hyperband"]["makespan"]


def test_the_length_of_an_outage_scales_with_the_search() -> None:
    """A worker is away for a fifth of the search's makespan; other conditions need one run."""

    def run(*, conditions: Conditions) -> Outcome:
        tried.append(conditions)
        return Outcome(trials=1, epochs=1, busy=1.0, busy_drawing=None, makespan_s=9_000.0, best=())

    tried: list[Conditions] = []
    lasting(SCENARIOS["search-outage"], 2, run)
    away = [end - start for start, end in tried[-1].absences(0) if start < 9_000]
    assert sum(away) == 0.2 * 9_000
    tried.clear()
    lasting(SCENARIOS["search-noise"], 2, run)
    assert len(tried) == 1


def test_the_target_is_the_best_value_over_all_procedures() -> None:
    """A procedure that never reaches the target is reported; the median is over all seeds."""

    def outcome(*best: tuple[float, float]) -> Outcome:
        return Outcome(trials=1, epochs=1, busy=1.0, busy_drawing=None, makespan_s=9.0, best=best)

    good, poor = outcome((1.0, 0.5), (4.0, 0.9)), outcome((2.0, 0.9 - WITHIN), (3.0, 0.895))
    first, second = compare({"a": [good, good], "b": [poor, outcome((1.0, 0.4))]})
    assert first.to_best_s == (4.0, 4.0)
    assert second.to_best_s == (2.0, float("inf"))
    assert (first.reached, second.reached) == (2, 1)
    assert second.median_to_best_s == float("inf")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["few-4x8", "--procedure", "asha"], "few-4x8 is no search: leave out --procedure"),
        (["hermes-4", "--seed", "3"], "hermes-4 is no search: leave out --seed"),
        (["search", "--policy", "lrptw"], "leave out --policy, --svg, --sigma and --core"),
        (["search", "--procedure", "hyperband", "--samples", "3"], "less than the 27 models"),
        (["search", "--epochs", "1", "--procedure", "asha"], "leaves no rung"),
        (["search-join", "--workers", "1"], "give --workers 2 or more"),
    ],
)
def test_an_invalid_argument_is_a_one_line_error(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message equals the one of `run_fit` and suggests a fix."""
    assert command.main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert line.startswith("python -m research simulate: ")
    assert says in line

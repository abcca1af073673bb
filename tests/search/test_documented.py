"""The example procedure of docs/search.md works."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import cerebro
from cerebro.client.search.requests import search_request
from cerebro.contract.search import OwnProcedure, RandomSampler
from cerebro.state import ModelState, RunState
from tests.controller.searches import fit_of, simulation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "search.md"


class _Experiment:
    """Record the arguments of `run_fit`."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def run_fit(self, spec: object, space: dict[str, Any], **given: Any) -> None:
        self.given = {"space": space, **given}


def documented() -> tuple[dict[str, Any], dict[str, Any]]:
    """Execute the page's example; return its names and the arguments it passes to `run_fit`."""
    (block,) = (
        found
        for found in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
        if "class Race" in found
    )
    experiment = _Experiment()
    names: dict[str, Any] = {"experiment": experiment, "MySpec": object, "__name__": "page"}
    exec(compile(ast.parse(block), str(PAGE), "exec"), names)
    return names, experiment.given


def test_the_documented_procedure_runs_a_search() -> None:
    """The cluster is simulated; the last model trains to the final epoch."""
    names, given = documented()
    request = search_request(
        given["space"], search=given["search"], epochs=given["epochs"], put_code=lambda code: code
    )
    assert request is not None
    assert isinstance(request.procedure, OwnProcedure)
    assert isinstance(names["Race"].sampler, cerebro.TPE)
    space = {**request.space, "batch_size": request.space["batch_size"].model_copy(update={"values": (1,)})}
    procedure = request.procedure.model_copy(update={"sampler": RandomSampler()})
    changed_request = request.model_copy(update={"space": space, "procedure": procedure})
    run = fit_of(
        simulation(changed_request, epochs=given["epochs"], procedure=lambda: names["Race"](models=6))
    )
    assert run.state is RunState.FINISHED
    assert run.search is not None
    assert run.search.finish == "the race is over"
    assert sorted(model.completed_epochs for model in run.models.values()) == [1, 2, 3, 4, 5, 6]
    assert [model.state for model in run.models.values()].count(ModelState.FINISHED) == 6
    assert len(run.search.verdicts) == 5

"""Each procedure works with each sampler, from the user's request until the search finishes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from cerebro import (
    ASHA,
    CMA,
    GP,
    PBT,
    TPE,
    Hyperband,
    Median,
    Plateau,
    Random,
    choice,
    loguniform,
    randint,
    uniform,
)
from cerebro.client.search.requests import Search, search_request
from cerebro.contract.search import RandomSampler
from cerebro.search.procedure import Suggested
from cerebro.search.samplers import suggest
from cerebro.search.samplers.dimensions import outside
from cerebro.search.sampling import applicable
from tests.search.driving import Run, search_of

NUMBERS: dict[str, Any] = {
    "lr": loguniform(1e-4, 1e-1),
    "drop": uniform(0, 0.5),
    "batch_size": randint(8, 64),
}
MIXED: dict[str, Any] = {**NUMBERS, "width": [32, 64], "act": choice(["relu", "tanh"]), "layers": 3}
CONDITIONAL: dict[str, Any] = {
    "lr": loguniform(1e-4, 1e-1),
    "encoder": choice("cnn", "vit"),
    "patch": choice(4, 8).when(encoder="vit"),
    "heads": randint(2, 12, step=2).when(encoder="vit", patch=8),
    "width": randint(32, 1024, log=True),
    "drop": uniform(0, 0.5, step=0.1).when(encoder="cnn"),
    "kernel": choice(3).when(encoder="cnn"),
    "batch_size": randint(8, 64),
}
CONDITIONAL_NUMBERS: dict[str, Any] = {
    "lr": loguniform(1e-4, 1e-1),
    "layers": randint(1, 3),
    "second": randint(8, 64, log=True).when(layers=[2, 3]),
    "third": uniform(0, 1).when(layers=3),
    "batch_size": randint(8, 64, step=8),
}
PAIRS: list[Any] = [
    *(
        (of(sampler=by), MIXED)
        for of, by in product((Random, ASHA, Hyperband), (RandomSampler(), TPE(startup=6)))
    ),
    *((of(sampler=CMA(population=4)), NUMBERS) for of in (Random, ASHA, Hyperband)),
    (ASHA(rule="promotion", brackets=2, sampler=TPE(startup=6)), MIXED),
    (PBT(population=6, perturb={"lr": [0.5, 2], "act": [0.5, 2], "batch_size": [0.9, 1.1]}), MIXED),
    (PBT(population=6), NUMBERS),
    *(
        (of(sampler=by), CONDITIONAL)
        for of, by in product((Random, ASHA, Hyperband), (RandomSampler(), TPE(startup=6)))
    ),
    (ASHA(sampler=CMA(population=4)), CONDITIONAL_NUMBERS),
    pytest.param(ASHA(sampler=GP(startup=6)), CONDITIONAL, marks=pytest.mark.slow),
    (PBT(population=6), CONDITIONAL_NUMBERS),
    (PBT(population=6, perturb={"lr": [0.5, 2], "encoder": [0.5, 2], "heads": [0.5, 2]}), CONDITIONAL),
]


class Sampled(Run):
    """Answer all requests for suggestions at once, as the controller does."""

    def suggest(self) -> None:
        request, numbers = self.search.request, self.search.open_suggestions
        found = suggest(request.sampler, request.space, self.search.history(), numbers, seed=5)
        for number, hyperparams in zip(numbers, found, strict=True):
            self._pending.popleft()
            self._reports.append(Suggested(number=number, hyperparams=hyperparams))
        self.report_all()


@pytest.mark.parametrize(("search", "space"), PAIRS)
def test_any_procedure_works_with_any_sampler(search: Any, space: dict[str, Any]) -> None:
    """All values are in the space, and equal reports give equal actions."""
    samples = None if isinstance(search, PBT) else 20
    request = search_request(
        space, search=Search(search, stop=[Plateau(6), Median(grace=3)]), samples=samples, epochs=9
    )
    assert request is not None
    run = Sampled(search_of(request, epochs=9), seed=1).to_the_end()
    assert run.why
    assert len(run.models) >= (samples or 6) or isinstance(search, Hyperband)
    for model in run.models.values():
        assert applicable(request.space, model.hyperparams) == model.hyperparams
        assert outside(model.hyperparams, request.space) is None
        if space in (NUMBERS, MIXED):
            assert list(model.hyperparams) == list(space)
            assert model.hyperparams.get("layers", 3) == 3
        assert 1e-4 <= float(model.hyperparams["lr"]) <= 1e-1  # type: ignore[arg-type]
        assert model.hyperparams["batch_size"] in range(8, 65)
    again = search_of(request, epochs=9)
    assert [again.begin(), *(again.on_report(report) for report in run.reports)] == run.actions

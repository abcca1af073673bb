"""Pages of models whose checkpoints a search removed."""

from __future__ import annotations

from functools import cache

from cerebro.contract.events import Event, ModelStopRequested
from cerebro.contract.search import ASHA
from cerebro.state import ModelState, Run
from cerebro.state.experiment import fold
from tests.controller.searches import fit_of, request_at, search_of, simulation
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import NOW, record


@cache
def log() -> tuple[Event, ...]:
    """A finished search in which a user stopped one model."""
    sim = simulation(search_of(ASHA(eta=2), samples=8, keep=2), epochs=4)
    request_at(sim, 2.5, ModelStopRequested(run="fit-1", model="m01", by="ada"))
    fit_of(sim)
    late = NOW - sim.log[-1].time - 60
    return tuple(event.model_copy(update={"time": event.time + late}) for event in sim.log)


def shown() -> tuple[Run, Browser]:
    bench = Bench()
    bench.store.records["pruned"] = record("pruned")
    bench.store.logs["pruned"] = list(log())
    return fold("pruned", log()).runs["fit-1"], bench.signed_in()


def test_the_page_of_a_model_shows_that_its_checkpoints_were_removed() -> None:
    """The page offers no action that needs a checkpoint."""
    run, browser = shown()
    assert run.models["m01"].state is ModelState.STOPPED
    page = text_of(browser.get("/experiments/pruned/models/m01").text)
    assert "the checkpoints of m01 were removed, because fit-1 keeps those of its 2 best models" in page
    assert "Resume model" not in page
    best = run.best_models(1)[0]
    assert "were removed" not in text_of(browser.get(f"/experiments/pruned/models/{best.id}").text)


def test_the_list_of_checkpoints_has_only_existing_checkpoints() -> None:
    """For a model without checkpoints the list names the reason."""
    run, browser = shown()
    page = text_of(browser.get("/experiments/pruned/checkpoints").text)
    best = {model.id for model in run.best_models(2)}
    named = {name for name in run.models if f"/{name}/" in page or f"{name}/u" in page}
    assert named == best
    assert "Removed The checkpoints of m01 were removed" in text_of(
        browser.get("/experiments/pruned/checkpoints?model=m01").text
    )

"""Web pages of a search of 1,000 models, against a grid of 1,000: time to first byte, bytes, parsing.

The controller's core writes both logs in virtual time. They are cut before their ends, so both runs are open; the
search is ASHA, whose models have trained about as many epochs as the grid's. Database, kvs_api, dispatcher and browser
are real. Requests to both alternate. A grid has no search tab, so the search tab is compared with the grid's table of
models, which also links every model.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from benchmarks.figure import Figure
from benchmarks.services import ControlPlane, control_plane
from benchmarks.web_browser import ARGUMENTS, CHROMIUM, sent_bytes, signed_in
from benchmarks.web_store import Writer
from cerebro.contract.events import Event, RunStarted
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.search import ASHA, ChoiceOf, LogUniform, SearchRequest, Space
from cerebro.contract.tasks.bodies import EvaluateTask, TaskBody, TrainTask
from cerebro.errors import ClusterError
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, Scenario

RATIO = 1.2

MODELS = 1_000
SEARCH, GRID = "search", "grid"
TABS = {
    "overview": ("", ""),
    "models": ("/models",) * 2,
    "search": ("/search", "/models"),
    "curves": ("/curves",) * 2,
}
"""Name -> the search's page, and the grid's page to compare with."""
_WORKERS = 2
_EPOCHS = {SEARCH: 9, GRID: 2}
_CUT = 0.97
"""Share of each log that is written."""
_REQUESTS, _PARSING_S = 60, 10
_QUICK = 10
"""Percentile of the reported time: others may use the machine."""
_LONGEST_S = 120.0
_PARSES = """pages => {
    const times = pages.map(() => Infinity);
    const until = performance.now() + %d;
    while (performance.now() < until) {
        pages.forEach((text, which) => {
            const began = performance.now();
            for (let n = 0; n < 5; n++) new DOMParser().parseFromString(text, "text/html");
            times[which] = Math.min(times[which], (performance.now() - began) / 5);
        });
    }
    return times;
}"""
"""Milliseconds of each page, the fastest five, in turns, because others may use the machine."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """(search, grid) of each tab in `TABS`, in milliseconds and bytes."""

    first_byte: dict[str, tuple[float, float]]
    page_bytes: dict[str, tuple[float, float]]
    """Bytes of the page alone."""
    sent: dict[str, tuple[float, float]]
    """Bytes with figures, styles and scripts, without plotly's."""
    parsing: dict[str, tuple[float, float]]
    """Parsing the page's text to a document."""
    sub_epochs: tuple[int, int]


def measure(models: int = MODELS) -> Found:
    """Simulate both, write their logs and read their pages in turns."""
    logs = {name: _log(name, models) for name in (SEARCH, GRID)}
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder,
        control_plane(Path(folder), ("redis", "kvs_api", "dispatcher")) as plane,
    ):
        with Writer(plane.database) as writer:
            for name, log in logs.items():
                writer.experiment(name, _timed(log), began=time.time() - log[-1].time, run="fit-1")
        http = _Client(plane)
        for name in logs:
            http.wait_until_read(name)
        first_byte, page_bytes = {}, {}
        for tab, pair in TABS.items():
            first_byte[tab], page_bytes[tab] = http.pair(pair)
        parsing, sent = _browsed(plane, http)
    sub_epochs = tuple(sum(event.type == "TaskCommitted" for event in log) for log in logs.values())
    return Found(
        first_byte=first_byte,
        page_bytes=page_bytes,
        sent=sent,
        parsing=parsing,
        sub_epochs=(sub_epochs[0], sub_epochs[1]),
    )


def benchmark() -> list[Figure]:
    """Measure the pages."""
    found = measure()
    what = f"page of a search of {MODELS:,} models against that of a grid of {MODELS:,}"
    search, grid = found.sub_epochs
    return [
        _figure(
            f"{what}: time to first byte, 10th percentile",
            found.first_byte,
            "ms",
            f"{_REQUESTS} requests of each, in turns, no two the same",
            "the tab of the search is compared with the grid's table of models",
            f"{search:,} and {grid:,} sub-epochs are committed, both runs are open",
        ),
        _figure(f"{what}: bytes of the page", {t: _kb(p) for t, p in found.page_bytes.items()}, "kB"),
        _figure(f"{what}: bytes with all it asks for", {t: _kb(p) for t, p in found.sent.items()}, "kB"),
        _figure(
            f"{what}: parsing in Chromium",
            found.parsing,
            "ms",
            f"five times in a row, the quickest such row of {_PARSING_S} s, in turns",
        ),
    ]


def _figure(what: str, pairs: Mapping[str, tuple[float, float]], measure: str, *notes: str) -> Figure:
    return Figure(
        what=what,
        measured=", ".join(
            f"{tab} {own:.1f} against {other:.1f} {measure}" for tab, (own, other) in pairs.items()
        ),
        ratio=max(own / other for own, other in pairs.values()),
        bar=RATIO,
        sense="at most",
        notes=notes,
    )


def _kb(pair: tuple[float, float]) -> tuple[float, float]:
    return pair[0] / 1e3, pair[1] / 1e3


# --- logs ---------------------------------------------------------------------------------------


def _log(name: str, models: int) -> tuple[Event, ...]:
    space: Space = {
        "lr": LogUniform(low=1e-4, high=1),
        "width": ChoiceOf(values=(32, 64, 128)),
        "batch_size": ChoiceOf(values=(1,)),
    }
    search = SearchRequest(procedure=ASHA(), space=space, samples=models) if name == SEARCH else None
    chosen = () if search else tuple(_grid(models))
    request = FitRequest(
        code="0" * 64,
        models=chosen,
        epochs=_EPOCHS[name],
        metric="loss",
        mode="min",
        search=search,
        planner=False,
    )
    plan = FitPlan(
        dataset=DATASET,
        models={f"m{number:03}": each for number, each in enumerate(chosen)},
        partitions=dict.fromkeys(range(_WORKERS), 10),
    )
    replicas = {f"worker-{number}": [number] for number in range(_WORKERS)}
    scenario = Scenario(replicas=replicas, sub_epoch_time=lambda body, worker: 1.0, metrics=_loss)
    simulation = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))
    simulation.run(limit=10_000_000)
    return simulation.log[: round(_CUT * len(simulation.log))]


def _grid(models: int) -> Iterator[Hyperparameters]:
    rng = random.Random(0)
    for number in range(models):
        yield {"lr": 10 ** rng.uniform(-4, 0), "width": (32, 64, 128)[number % 3], "batch_size": 1}


def _loss(body: TaskBody) -> Mapping[str, float]:
    assert isinstance(body, TrainTask | EvaluateTask)
    rate = body.hyperparams["lr"]
    assert isinstance(rate, float)
    return {"loss": abs(math.log10(rate) + 2) + 1 / (1 + body.epoch)}


def _timed(log: tuple[Event, ...]) -> Iterator[tuple[float, Event]]:
    """Yield each event with the seconds since the previous one."""
    before = 0.0
    for event in log:
        yield event.time - before, event
        before = event.time


# --- client -------------------------------------------------------------------------------------


class _Client:
    """A browser's connection without the browser."""

    def __init__(self, plane: ControlPlane) -> None:
        headers = {
            "Authorization": f"Bearer {plane.token}",
            "Accept": "text/html,*/*",
            "Accept-Encoding": "gzip",
        }
        self._page, self._http = plane.page, urllib3.PoolManager(headers=headers, maxsize=1, retries=False)

    def wait_until_read(self, name: str) -> None:
        """Poll until the dispatcher has read the whole log."""
        until = time.monotonic() + _LONGEST_S
        while time.monotonic() < until:
            if self._http.request("GET", f"{self._page}/api/views/experiments/{name}").json()["is_complete"]:
                return
            time.sleep(0.2)
        raise ClusterError(f"the dispatcher did not read {name} within {_LONGEST_S:g} s")

    def text(self, path: str) -> str:
        """Return a page."""
        return self._http.request("GET", self._page + path).data.decode()

    def pair(self, tabs: tuple[str, ...]) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return milliseconds to the first byte, and bytes, of both pages."""
        times: tuple[list[float], list[float]] = ([], [])
        sizes = [0.0, 0.0]
        for number in range(_REQUESTS):
            for which, (name, tab) in enumerate(zip((SEARCH, GRID), tabs, strict=True)):
                began = time.perf_counter()
                answer = self._http.request(
                    "GET", f"{self._page}/experiments/{name}{tab}?n={number}", preload_content=False
                )
                times[which].append(1e3 * (time.perf_counter() - began))
                if answer.status != 200:
                    raise ClusterError(f"{name}{tab} answered {answer.status}")
                sizes[which] = len(answer.read(decode_content=False))
                answer.release_conn()
        return (_quick(times[0]), _quick(times[1])), (sizes[0], sizes[1])


def _quick(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[_QUICK - 1]


def _browsed(plane: ControlPlane, http: _Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return milliseconds of parsing, and bytes sent, of each pair."""
    from playwright.sync_api import sync_playwright

    parsing, sent = {}, {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for tab, paths in TABS.items():
            addresses = [
                f"/experiments/{name}{path}" for name, path in zip((SEARCH, GRID), paths, strict=True)
            ]
            sizes = []
            for address in addresses:
                with signed_in(browser.new_context(), plane) as context:
                    sizes.append(sent_bytes(context.new_page(), plane.page + address))
            sent[tab] = sizes[0], sizes[1]
            page = browser.new_page()
            own, other = page.evaluate(
                _PARSES % (1000 * _PARSING_S), [http.text(address) for address in addresses]
            )
            parsing[tab] = own, other
        browser.close()
    return parsing, sent


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()

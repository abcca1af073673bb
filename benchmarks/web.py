"""The web page over a long run: page times, delay of news, cost of fifty viewers, and memory.

Database, kvs_api and dispatcher are the real processes. The run has 10,000 models and 1,000,000 reported points, and
continues during the measurement: the services commit sub-epochs as from a worker. 1,000 small experiments exist as
well. A client over HTTP measures the times, with tags where a browser would send one.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from benchmarks.figure import Figure
from benchmarks.services import ControlPlane, control_plane
from benchmarks.web_browser import Looked, figures, look
from benchmarks.web_store import NAME, RUN, Size, Work, seed
from cerebro.errors import ClusterError
from cerebro.runtime.kvs.client import KvsClient

PAGE_MS, OVERVIEW_MS, NEWS_S, LOAD_PERCENT, MEMORY_MB = 300.0, 100.0, 2.0, 2.0, 250.0

VIEWERS, POLL_S = 50, 1.5
_SUB_EPOCH_EVERY_S = 1.0
_FOLLOW_S = 20.0
_REQUESTS = 100
_LONGEST_S = 300.0
_CORES = 2
_NOT_CHANGED = 304


@dataclass(frozen=True, kw_only=True)
class Found:
    """The measurements, in milliseconds unless named otherwise."""

    pages: dict[str, list[float]]
    """Address -> milliseconds of each request."""
    looked: Looked
    news_s: list[float]
    """Seconds from the answer to a commit until a viewer had it."""
    added_percent: float
    memory_mb: float
    caught_up_s: float
    sub_epochs: int
    polls: int
    unchanged: int


def measure(size: Size | None = None) -> Found:
    """Write the store, read pages, and follow the run."""
    size = size or Size()
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder,
        control_plane(Path(folder), ("redis", "kvs_api", "dispatcher")) as plane,
    ):
        seed(plane.database, size)
        viewer = _Viewer(plane)
        caught_up_s = _wait_until_read(viewer, size)
        work = Work(KvsClient(plane.server, plane.token), size)
        with _working(work):
            pages = {name: _timed(viewer, addresses) for name, addresses in _addresses(size).items()}
            looked = look(plane, NAME)
        alone = _load(plane, work, _FOLLOW_S)
        watchers = [_Watcher(plane, page) for page in _watched() for _ in range(VIEWERS // 2)]
        with _watching(watchers):
            time.sleep(POLL_S)  # each has sent one request
            watched = _load(plane, work, _FOLLOW_S)
        return Found(
            pages=pages,
            looked=looked,
            news_s=[delay for watcher in watchers for delay in watcher.delays(work)],
            added_percent=100 * (watched - alone) / _CORES,
            memory_mb=_memory_mb(plane.pids["dispatcher"]),
            caught_up_s=caught_up_s,
            sub_epochs=work.done,
            polls=sum(watcher.polls for watcher in watchers),
            unchanged=sum(watcher.unchanged for watcher in watchers),
        )


def benchmark() -> list[Figure]:
    """Measure all bars."""
    size = Size()
    found = measure(size)
    slowest, p95 = max(((name, _p95(times)) for name, times in found.pages.items()), key=lambda pair: pair[1])
    news = sorted(found.news_s)
    what = f"page, {size.models:,} models, {size.points:,} points"
    return [
        Figure(
            what=f"{what}: server time of list and experiment, 95th percentile",
            measured=", ".join(f"{name} {_p95(times):.0f} ms" for name, times in found.pages.items()),
            ratio=p95,
            bar=PAGE_MS,
            sense="at most",
            measure="ms",
            notes=(
                f"the slowest is the {slowest}; {_REQUESTS} requests each, no two the same, while sub-epochs are "
                f"committed",
                f"the first viewer waited {found.caught_up_s:.0f} s until the whole run was read",
            ),
        ),
        Figure(
            what=f"{what}: server time of the overview, 95th percentile",
            measured=f"median {statistics.median(found.pages['experiment']):.0f} ms",
            ratio=_p95(found.pages["experiment"]),
            bar=OVERVIEW_MS,
            sense="at most",
            measure="ms",
        ),
        *figures(found.looked, what),
        Figure(
            what=f"{what}: from a worker's report to the viewer's page, 95th percentile",
            measured=f"median {statistics.median(news):.2f} s, longest {news[-1]:.2f} s",
            ratio=_p95(news),
            bar=NEWS_S,
            sense="at most",
            measure="s",
            notes=(f"viewers ask every {POLL_S:g} s, as the page's script does",),
        ),
        Figure(
            what=f"{what}: processor time that {VIEWERS} viewers of the run add",
            measured=f"{found.added_percent:.2f} % of {_CORES} cores",
            ratio=found.added_percent,
            bar=LOAD_PERCENT,
            sense="at most",
            measure="%",
            notes=(
                f"of dispatcher, kvs_api and database together; {found.polls:,} requests, {found.unchanged:,} of them "
                f"answered with 304, while {1 / _SUB_EPOCH_EVERY_S:g} sub-epoch a second was committed",
            ),
        ),
        Figure(
            what=f"{what}: memory of the dispatcher at its highest",
            measured=f"{found.memory_mb:.0f} MB",
            ratio=found.memory_mb,
            bar=MEMORY_MB,
            sense="at most",
            measure="MB",
        ),
    ]


# --- readers --------------------------------------------------------------------------------------------------------


class _Viewer:
    """A browser's connection, for one thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self._page = plane.page
        self._http = urllib3.PoolManager(
            headers={
                "Authorization": f"Bearer {plane.token}",
                "Accept": "text/html,*/*",
                "Accept-Encoding": "gzip",
            },
            maxsize=1,
            retries=False,
        )

    def get(self, path: str, tag: str = "") -> urllib3.BaseHTTPResponse:
        """Send one request; only a page or an unchanged tag is accepted."""
        headers = dict(self._http.headers) | ({"If-None-Match": tag} if tag else {})
        answer = self._http.request("GET", self._page + path, headers=headers, timeout=60.0)
        if answer.status not in (200, _NOT_CHANGED):
            raise ClusterError(f"{path} answered {answer.status}: {answer.data[:300]!r}")
        return answer


def _wait_until_read(viewer: _Viewer, size: Size) -> float:
    """Poll until the dispatcher has read the whole run and every small experiment; return the seconds."""
    began = time.monotonic()
    while time.monotonic() < began + _LONGEST_S:
        view = viewer.get(f"/api/views/experiments/{NAME}").json()
        known = viewer.get("/api/views/experiments?size=1").json()
        live = viewer.get(f"/api/views/experiments/{NAME}/curves?axis=row&top=1&points=5000").json()
        is_live = sum(len(curve["x"]) for curve in live["curves"]) > 0
        if view["is_complete"] and known["read"] == size.experiments + 1 and is_live:
            return time.monotonic() - began
        time.sleep(1.0)
    raise ClusterError(f"the dispatcher did not read the run within {_LONGEST_S:g} s")


def _addresses(size: Size) -> dict[str, list[str]]:
    """Return the addresses of distinct pages that people open, so that no page is cached."""
    order = random.Random(0)
    keys = ("-last_event", "name", "-best", "best", "-created", "progress", "state,-best", "author,name")
    lists = [
        f"/experiments?sort={key}&page={page}"
        for key, page in itertools.product(keys, range(1, 1 + _REQUESTS // len(keys) + 1))
    ]
    columns = ("id", "-best", "best", "lr", "-lr", "state,-best", "-sub_epochs_done", "layers,-best")
    tables = [
        f"/experiments/{NAME}/models?sort={key}&page={1 + order.randrange(size.models // 200)}&filter=lr+%3E+{n}e-9"
        for n, key in zip(range(1, 1 + _REQUESTS), itertools.cycle(columns), strict=False)
    ]
    overviews = [f"/experiments/{NAME}?fit={RUN}&n={number}" for number in range(_REQUESTS)]
    return {"list": lists[:_REQUESTS], "experiment": overviews, "models": tables}


def _timed(viewer: _Viewer, addresses: list[str]) -> list[float]:
    found = []
    for address in addresses:
        began = time.perf_counter()
        viewer.get(address)
        found.append(1000 * (time.perf_counter() - began))
    return found


# --- followers ------------------------------------------------------------------------------------------------------


def _watched() -> tuple[str, ...]:
    """Return the addresses that viewers keep open: a run's first page by its script, and its numbers by a program."""
    return f"/fragments/experiments/{NAME}", f"/api/views/experiments/{NAME}"


@dataclass
class _Watcher:
    """Requests one address every `POLL_S` seconds, with the tag of its version."""

    plane: ControlPlane
    path: str
    polls: int = 0
    unchanged: int = 0
    _progress: list[tuple[float, int]] = field(default_factory=list)
    """(time, completed sub-epochs) of each new answer."""

    def watch(self, phase_s: float, is_over: threading.Event) -> None:
        """Poll until `is_over`."""
        viewer, tag = _Viewer(self.plane), ""
        is_over.wait(phase_s)
        while not is_over.is_set():
            began = time.monotonic()
            answer = viewer.get(self.path, tag)
            self.polls += 1
            self.unchanged += answer.status == _NOT_CHANGED
            tag = answer.headers.get("ETag", "")
            if answer.status == 200 and self.path.startswith("/api"):
                self._progress.append((time.time(), answer.json()["run"]["done"]))
            is_over.wait(max(0.0, POLL_S - (time.monotonic() - began)))

    def delays(self, work: Work) -> Iterator[float]:
        """Yield the delay from each commit in this watch to its first sight."""
        if not self._progress:
            return
        first = self._progress[0][1]
        for done, at in work.commits:
            if done > first and (seen := next((t for t, n in self._progress if n >= done), None)) is not None:
                yield seen - at


@contextmanager
def _watching(watchers: list[_Watcher]) -> Iterator[None]:
    is_over = threading.Event()
    with ThreadPoolExecutor(len(watchers)) as pool:
        running = [
            pool.submit(watcher.watch, POLL_S * number / len(watchers), is_over)
            for number, watcher in enumerate(watchers)
        ]
        try:
            yield
        finally:
            is_over.set()
            for each in running:
                each.result()


@contextmanager
def _working(work: Work) -> Iterator[None]:
    """Commit sub-epochs until the context ends."""
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_work, work, is_over.wait)
        try:
            yield
        finally:
            is_over.set()
            running.result()


def _work(work: Work, wait: Callable[[float], bool]) -> None:
    while not wait(_SUB_EPOCH_EVERY_S):
        work.sub_epoch()


# --- load -----------------------------------------------------------------------------------------------------------


def _load(plane: ControlPlane, work: Work, seconds: float) -> float:
    """Return the CPU seconds per second of all services, while sub-epochs are committed."""
    with _working(work):
        before, began = _cpu_s(plane), time.monotonic()
        time.sleep(seconds)
        return (_cpu_s(plane) - before) / (time.monotonic() - began)


def _cpu_s(plane: ControlPlane) -> float:
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in plane.pids.values())
    return sum((int(each[11]) + int(each[12])) / os.sysconf("SC_CLK_TCK") for each in fields)


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()

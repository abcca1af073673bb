"""Cost of reading a time range of a long run: 10,000 events of a log of 100,000 sub-epochs, and of a million.

Redis and kvs_api are the real processes. The log is written straight into the database, a segment at a time, and moved
into files by the controller's own call. Time ranges start at random places; a new reader reads each one, in a part of
the log that was never read, and then reads it again.

``python -m benchmarks.windows 300000`` measures only that many sub-epochs.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import redis

from benchmarks.figure import Figure
from benchmarks.growth import MODELS, WORKERS, story
from benchmarks.services import ControlPlane, control_plane
from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.stored.segments import SegmentRequest, SegmentsAnswer
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.log_pages import Log, LogPages
from kvs_api.logs.segment_store import MOST
from kvs_api.store import keys

SUB_EPOCHS = (100_000, 1_000_000)
EVENTS, WINDOWS = 10_000, 9
_NAME, _RUN = "long", "fit-1"
_UNNUMBERED = {"seq", "time"}


class _Counted:
    """The store, with a count of the requests for events."""

    def __init__(self, kvs: KvsClient) -> None:
        self._kvs, self.num_reads = kvs, 0

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        self.num_reads += 1
        return self._kvs.events(experiment, after)

    def segments(self, experiment: str) -> SegmentsAnswer:
        return self._kvs.segments(experiment)


def benchmark() -> list[Figure]:
    """Compare the longer log with the shorter one."""
    few, many = (measure(sub_epochs) for sub_epochs in SUB_EPOCHS)
    return [
        Figure(
            what=f"a window of {EVENTS:,} events, first look: {SUB_EPOCHS[1]:,} sub-epochs against {SUB_EPOCHS[0]:,}",
            measured=f"{many['first_s']:.2f} s, {few['first_s']:.2f} s",
            ratio=many["first_s"] / few["first_s"],
            bar=1.3,
            sense="at most",
            notes=(
                f"{many['num_reads']:.0f} and {few['num_reads']:.0f} pages of events; once more "
                f"{many['again_s']:.2f} s, {few['again_s']:.2f} s",
            ),
        )
    ]


def measure(sub_epochs: int) -> dict[str, float]:
    """Return medians over the time ranges."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder = Path(name)
        with control_plane(folder, ("redis", "kvs_api")) as plane:
            log, times = _written(plane, sub_epochs)
        found = []
        with control_plane(folder, ("redis", "kvs_api")) as plane:
            kvs = KvsClient(plane.server, plane.token)
            firsts = Random(2).sample(range(1, log.newest // EVENTS - 1), WINDOWS)
            for first in firsts:
                found.append(
                    _looked(kvs, log, times[first * EVENTS // 1000], times[(first + 1) * EVENTS // 1000])
                )
        return {
            name: statistics.median(each[name] for each in found)
            for name in ("first_s", "again_s", "num_reads")
        }


def _looked(kvs: KvsClient, log: Log, since: float, until: float) -> dict[str, float]:
    store = _Counted(kvs)
    pages = LogPages(store)
    began = time.perf_counter()
    window = pages.window(log, _RUN, since, until)
    first_s = time.perf_counter() - began
    num_reads = store.num_reads
    began = time.perf_counter()
    pages.window(log, _RUN, since, until)
    again_s = time.perf_counter() - began
    assert abs(len(window.task_attempts) - EVENTS / 3) < EVENTS / 30
    return {"first_s": first_s, "again_s": again_s, "num_reads": float(num_reads)}


def _written(plane: ControlPlane, sub_epochs: int) -> tuple[Log, list[float]]:
    """Write the log; return the time of each thousandth event."""
    kvs = KvsClient(plane.server, plane.token)
    began = time.time() - 30 * 86_400
    record = ExperimentRecord(
        name=_NAME, locators=Locators(train=Locator(metadata="/data/train.csv")), created=began
    )
    while not (term := kvs.lead("keeper", 36_000.0).term):
        time.sleep(0.05)
    times, seq, now = [began], 0, began
    events = story(sub_epochs)
    with redis.Redis(unix_socket_path=str(plane.database)) as database:
        database.set(keys.experiment(_NAME), record.model_dump_json())
        database.zadd(keys.EXPERIMENTS, {_NAME: began})
        while piece := list(itertools.islice(events, MOST)):
            pipe = database.pipeline(transaction=False)
            for takes_s, event in piece:
                seq, now = seq + 1, now + takes_s
                content = event.model_dump_json(exclude=_UNNUMBERED)
                pipe.xadd(keys.log(_NAME), {"t": int(now * 1000), "e": content}, id=f"{seq}-0")
                if not seq % 1000:
                    times.append(now)
            pipe.set(f"{keys.log(_NAME)}:seq", seq)
            pipe.execute()
            kvs.cut(_NAME, SegmentRequest(term=term, created=began, until=seq, keep=1, least=1))
    kvs.lead("keeper", 0.001)
    return Log(_NAME, began, seq), times


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or map(str, SUB_EPOCHS)):
        print(f"{count:,} sub-epochs, {MODELS} models, {WORKERS} workers: {measure(count)}")

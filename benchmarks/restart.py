"""A controller's restart in the middle of a long fit run: its CPU time, and whether it keeps the leadership.

Redis, kvs_api and the controller are the real processes. The log is written straight into the database, like
`benchmarks.web_store`, because the services would take hours. The CPU time runs from the controller's start, including
about two thirds of a second of imports, until it has decided, has read TensorBoard's files, and is idle. The first
start has to write these files; the second start finds them, like a real restart. Both have a bar. Live points are read
at the first later commit, so only the first case includes them. A second controller requests the leadership repeatedly,
and would get it if the first one's lease expired.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.growth import name_newcomer, story, task_name
from benchmarks.services import ControlPlane, control_plane
from benchmarks.web_store import Writer
from cerebro.errors import ClusterError
from cerebro.runtime.kvs.client import KvsClient

BAR_S = 15.0
SUB_EPOCHS = (30_000, 100_000)
MODELS, WORKERS = 40, 10
_NAME, _RUN = "long", "fit-1"
_LONGEST_S = 600.0
_RIVAL_S = 0.001
"""Lease of the second controller: the minimum. It can only replace a first controller that has lost its own lease."""
_POLL_S = 0.2
_BUSY, _QUIET_S = 0.2, 2.0
"""The controller is idle when it has used less than this share of a core for this time."""


def benchmark() -> list[Figure]:
    """Measure the CPU seconds of the larger log, and their growth with its length."""
    found = {sub_epochs: measure(sub_epochs) for sub_epochs in SUB_EPOCHS}
    few, many = SUB_EPOCHS
    growth = (found[many]["again_s"] / found[few]["again_s"]) / (many / few)
    lost = sum(each["lost"] for each in found.values())
    case = f"a controller starts over after {many:,} sub-epochs ({3 * many:,} events of them)"
    return [
        *(
            Figure(
                what=f"{case}: processor time until it has caught up, {where}",
                measured=f"{found[many][cpu]:.1f} s; after {few:,} sub-epochs {found[few][cpu]:.1f} s",
                ratio=found[many][cpu],
                bar=BAR_S,
                sense="at most",
                measure="s",
                notes=(
                    f"{where}, it decided after "
                    + " and ".join(
                        f"{found[sub_epochs][decided]:.1f} s ({sub_epochs:,} sub-epochs)"
                        for sub_epochs in SUB_EPOCHS
                    ),
                ),
            )
            for where, cpu, decided in (
                ("TensorBoard's files in place", "again_s", "again_decided_s"),
                ("TensorBoard's files all to be made", "cpu_s", "decided_s"),
            )
        ),
        Figure(
            what=f"{case}: the same for each sub-epoch, against {few:,} sub-epochs",
            measured=f"{1e6 * found[many]['again_s'] / many:.0f} us, {1e6 * found[few]['again_s'] / few:.0f} us",
            ratio=growth,
            bar=1.2,
            sense="at most",
            notes=(f"{MODELS} models on {WORKERS} workers; one live point a sub-epoch",),
        ),
        Figure(
            what=f"{case}: times that a second controller got the leadership meanwhile",
            measured=f"{lost:.0f} of {sum(each['attempts'] for each in found.values()):.0f} times it asked",
            ratio=lost,
            bar=0,
            sense="at most",
        ),
    ]


def measure(sub_epochs: int) -> dict[str, float]:
    """Start a controller on a log of this length, first without event files, then with them."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder = Path(name)
        with control_plane(folder, ("redis", "kvs_api")) as plane, Writer(plane.database) as writer:
            writer.experiment(_NAME, story(sub_epochs, MODELS, WORKERS), began=time.time() - 86_400, run=_RUN)
            writer.points(_NAME, _points(sub_epochs))
        first, again = _restart(folder, "newcomer-1"), _restart(folder, "newcomer-2")
    return {
        **first,
        "again_s": again["cpu_s"],
        "again_decided_s": again["decided_s"],
        "lost": first["lost"] + again["lost"],
        "attempts": first["attempts"] + again["attempts"],
    }


def _restart(folder: Path, newcomer: str) -> dict[str, float]:
    """Start a controller and wait until it is idle.

    The log names an unregistered newcomer. The controller records its loss once it knows the log.
    """
    with control_plane(folder, ("redis", "kvs_api")) as plane:
        name_newcomer(KvsClient(plane.server, plane.token), newcomer)
    with control_plane(folder) as plane:
        began = time.monotonic()
        kvs = KvsClient(plane.server, plane.token)
        (summary,) = kvs.experiments()
        has_led, lost, attempts = False, 0, 0
        decided_s, used_s, quiet_since = math.inf, 0.0, began
        while time.monotonic() < quiet_since + _QUIET_S or not math.isfinite(decided_s):
            if time.monotonic() > began + _LONGEST_S:
                raise ClusterError(f"the controller did not decide within {_LONGEST_S:g} s")
            is_rival = kvs.lead("rival", _RIVAL_S).term != 0
            has_led |= not is_rival
            attempts, lost = attempts + has_led, lost + (has_led and is_rival)
            if not math.isfinite(decided_s) and kvs.events(_NAME, summary.last_seq):
                decided_s = time.monotonic() - began
            now_s = _cpu_s(plane)
            if now_s > used_s + _BUSY * _POLL_S:
                quiet_since = time.monotonic()
            used_s = now_s
            time.sleep(_POLL_S)
        return {"cpu_s": _cpu_s(plane), "decided_s": decided_s, "lost": lost, "attempts": attempts}


def _cpu_s(plane: ControlPlane) -> float:
    fields = Path(f"/proc/{plane.pids['controller']}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- live points ---------------------------------------------------------------------------


def _points(sub_epochs: int) -> Iterator[str]:
    """Yield a live point per sub-epoch, formatted like pydantic's `LivePoint` in a tenth of the time."""
    epochs = range(1, sub_epochs // (MODELS * WORKERS) + 1)
    for epoch, turn, number in itertools.product(epochs, range(MODELS), range(WORKERS)):
        task = task_name((turn + number * (MODELS // WORKERS)) % MODELS, epoch, number)
        yield (
            f'{{"task":"{task}","attempt":1,"worker":"{_worker(number)}","rows":500,"rows_failed":0,'
            f'"total_rows":1000,"batch":16,"values":{{"loss":{1 / epoch!r}}}}}'
        )


def _worker(number: int) -> str:
    return f"worker-{number}"


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure.cells(), *figure.notes, sep="\n  ")


if __name__ == "__main__":
    main()

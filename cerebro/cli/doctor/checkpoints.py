"""Check of the final checkpoints: nothing reads them until somebody loads one."""

from __future__ import annotations

import time

from cerebro.cli.doctor.check import Case, Finding, ok, warn
from cerebro.cli.experiment_status import load_readable
from cerebro.cli.status import client
from cerebro.data.lost_files import lost_files
from cerebro.errors import CerebroError
from cerebro.state.final_files import FinalFile, final_files, lost_text

_BUDGET_S = 10.0
"""For reading logs and looking at files; the newest experiments come first."""
_NAMED = 3


def final_checkpoints(case: Case) -> Finding:
    """Those of finished models are on the checkpoint volume."""
    if case.info is None:
        return ok("no local cluster runs: the page of an experiment tells of one elsewhere")
    try:
        kvs = client(case.info)
        names = [each.experiment.name for each in kvs.experiments() if each.unreadable is None]
    except CerebroError as problem:
        return warn(f"experiments are not known: {problem}", "cerebro status")
    deadline = time.monotonic() + _BUDGET_S
    lost: list[tuple[str, FinalFile]] = []
    looked = 0
    for name in names:
        if time.monotonic() > deadline:
            break
        looked += 1
        try:
            state, _ = load_readable(kvs, name)
        except CerebroError:
            continue  # it was deleted meanwhile, or cannot be read, of which its page tells
        lost += [(name, each) for each in lost_files(case.home.volumes / "checkpoints", final_files(state))]
    rest = f" of the newest {looked} of {len(names)} experiments" if looked < len(names) else ""
    if not lost:
        return ok(f"those of all finished models{rest} are there")
    first = "; ".join(f"{each.model} of {name}/{each.run}" for name, each in lost[:_NAMED])
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return warn(
        f"{len(lost)} checkpoint(s) of finished models{rest} are gone: {first}{more}", lost_text(*lost[0])
    )

"""The check ``checkpoints`` of ``cerebro doctor``: are the final checkpoints of finished models on the volume?

Only for a local cluster. Checks that files exist, not their content, for at most 10 s. No service reads these files
after training, so nothing else would notice their loss.
"""

from __future__ import annotations

import time

from cerebro.cli.administration.cluster_status import client
from cerebro.cli.doctor.check import Case, Finding, ok, warn
from cerebro.cli.experiments.status import load_readable
from cerebro.data.files.lost_files import lost_files
from cerebro.errors import CerebroError
from cerebro.state.models.final_checkpoints import FinalFile, final_files, lost_text

_BUDGET_S = 10.0
"""Time limit; the newest experiments are checked first."""
_NAMED = 3


def final_checkpoints(case: Case) -> Finding:
    """Check that the checkpoints of finished models are on the checkpoint volume."""
    if case.info is None:
        return ok("no local cluster runs; for another cluster see the pages of its experiments")
    try:
        kvs = client(case.info)
        names = [each.experiment.name for each in kvs.experiments() if each.unreadable is None]
    except CerebroError as problem:
        return warn(f"the experiments cannot be listed: {problem}", "cerebro status")
    deadline = time.monotonic() + _BUDGET_S
    lost: list[tuple[str, FinalFile]] = []
    num_checked = 0
    for name in names:
        if time.monotonic() > deadline:
            break
        num_checked += 1
        try:
            state, _ = load_readable(kvs, name)
        except CerebroError:
            continue  # It was deleted just now, or it is unreadable: its page says so.
        lost += [(name, each) for each in lost_files(case.home.volumes / "checkpoints", final_files(state))]
    rest = f" of the newest {num_checked} of {len(names)} experiments" if num_checked < len(names) else ""
    if not lost:
        return ok(f"those of all finished models{rest} are there")
    first = "; ".join(f"{each.model} of {name}/{each.run}" for name, each in lost[:_NAMED])
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return warn(
        f"{len(lost)} checkpoint(s) of finished models{rest} are gone: {first}{more}", lost_text(*lost[0])
    )

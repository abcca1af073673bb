"""``cerebro trials EXPERIMENT``: show the parallel plans of a fit's models, and the results of measuring them.

Read from the experiment's log. With ``--forget``, the stored results (`Store.trials`, kept 90 days) of these plans are
removed, so that later runs measure again; the log keeps them. No trial is started here.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cerebro.cli.text import counted, size, table

if TYPE_CHECKING:
    from cerebro.contract.trials import Inspection, KnownParallelPlan, ModelGroup
    from cerebro.state import ExperimentState, Run

_NAMED = 3
"""Maximum number of model names for a group."""


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``trials`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    trials = commands.add_parser(
        "trials",
        parents=[common],
        help="show the parallel plans of models, and the results of trials",
    )
    trials.add_argument("experiment", metavar="EXPERIMENT")
    trials.add_argument(
        "--run", metavar="R", dest="of_run", help="such as fit-1 (default: the newest fit run)"
    )
    trials.add_argument("--json", action="store_true", help="as JSON")
    trials.add_argument(
        "--forget", action="store_true", help="let other runs measure these plans again, also failed ones"
    )
    trials.set_defaults(run=_trials)


def _trials(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.session import Session

    connection = connect(home=options.home, start=False)
    session = Session(connection, connection.kvs.experiment(options.experiment))
    run = select_fit(session.state(), options.of_run)
    if options.forget:
        known = [
            parallel_plan.cache_key
            for group in _groups(run)
            for parallel_plan in group.parallel_plans
            if parallel_plan.cache_key
        ]
        count = connection.kvs.forget_trials(known)
        sys.stdout.write(f"{counted(count, 'outcome')} of trials forgotten.\n")
        return 0
    if options.json:
        sys.stdout.write(
            json.dumps({"run": run.id, "parallel_plans": [asdict(row) for row in rows(run)]}, indent=2) + "\n"
        )
    else:
        sys.stdout.write("\n".join(lines(run)) + "\n")
    return 0


def select_fit(state: ExperimentState, name: str | None) -> Run:
    """Return the fit run `name`, or the newest one.

    Raises:
        NotFoundError: the experiment does not have the run.
    """
    from cerebro.errors import NotFoundError

    fits = [run for run in state.runs.values() if run.kind == "fit" and name in (None, run.id)]
    if not fits:
        missing = f"no fit run {name!r}" if name else "no fit run"
        raise NotFoundError(f"{missing} in experiment {state.name!r}: see `cerebro status {state.name}`")
    return fits[-1]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A parallel plan of a group of models, on one kind of device.

    Attributes:
        models: ids of the group's models.
        state: ``measured``, ``ruled out``, ``not applicable``, ``running``, or ``not tried``.
        batch_s: seconds of a batch, or `None` if not measured.
        device_bytes, host_bytes: measured peak memory, or the computed minimum unless `is_seen`.
        reason: why the plan is ruled out, not applicable or not verified.
    """

    group: str
    name: str
    models: tuple[str, ...]
    parallel_plan: str
    devices: int
    device: str
    state: str
    batch_s: float | None = None
    sigma: float | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    is_seen: bool = False
    is_verified: bool = False
    is_recalled: bool = False
    reason: str = ""


def rows(run: Run) -> list[Row]:
    """Return every parallel plan of every group, in the order of the inspection."""
    inspection = run.trials.inspection
    return [
        _row(run, inspection, group, known)
        for group in _groups(run)
        for known in group.parallel_plans
        if inspection
    ]


def _groups(run: Run) -> tuple[ModelGroup, ...]:
    return run.trials.inspection.groups if run.trials.inspection is not None else ()


def _row(run: Run, inspection: Inspection, group: ModelGroup, known: KnownParallelPlan) -> Row:
    outcome = run.trials.outcomes.get((group.id, known.id))
    is_open = f"{run.id}/trial/{group.id}/{known.id}" in run.tasks.open
    ruled_out = [
        found.reason
        for name in group.models
        if (model := run.models.get(name)) is not None
        if (found := model.failures.ruled_out.get(known.parallel_plan.label)) is not None
    ]
    state, reason = "not tried", ""
    if known.reason:
        state, reason = "not applicable", known.reason
    elif ruled_out:
        state, reason = "ruled out", ruled_out[0]
    elif outcome is not None and outcome.reason:
        state, reason = "ruled out", outcome.reason
    elif outcome is not None:
        state, reason = "measured", outcome.unverified
    elif is_open:
        state = "running"
    is_measured = outcome is not None and outcome.batch_s > 0
    return Row(
        group=group.id,
        name=group.name,
        models=group.models,
        parallel_plan=known.parallel_plan.label,
        devices=known.parallel_plan.size,
        device=inspection.device_kinds[known.device_kind].device.name,
        state=state,
        batch_s=outcome.batch_s if outcome is not None and is_measured else None,
        sigma=outcome.sigma if outcome is not None and is_measured else None,
        device_bytes=(outcome.device_bytes if outcome is not None else 0) or known.device_bytes,
        host_bytes=(outcome.host_bytes if outcome is not None else 0) or known.host_bytes,
        is_seen=outcome is not None and bool(outcome.device_bytes or outcome.host_bytes),
        is_verified=outcome is not None and outcome.is_verified,
        is_recalled=outcome is not None and outcome.is_recalled,
        reason=reason,
    )


def lines(run: Run) -> list[str]:
    """Format the plans of a run's models."""
    if run.trials.inspection is None:
        why = "no trials were wanted" if run.fit_request.trials == "never" else "there was nothing to choose"
        return [f"The models of {run.id} were not inspected: {why}."]
    if run.trials.inspection.problem:
        return [f"The models of {run.id} could not be inspected: {run.trials.inspection.problem}"]
    found = [
        f"Parallel plans for the models of {run.id}. Models of a group are alike: a trial of one holds for all.",
        "",
    ]
    for group in run.trials.inspection.groups:
        more = f" and {len(group.models) - _NAMED} more" if len(group.models) > _NAMED else ""
        kind = f" ({group.name})" if group.name else ""
        found.append(f"  {group.id}: {', '.join(group.models[:_NAMED])}{more}{kind}")
        if group.problem:
            found.append(f"    {group.problem}")
    heads = ("GROUP", "PLAN", "DEVICES", "A BATCH", "DEVICE MEMORY", "HOST MEMORY", "GRADIENT", "STATE")
    shown = rows(run)
    head, *lines = table(heads, [_cells(row) for row in shown]) or [""]
    found += ["", head] if head else []
    for row, line in zip(shown, lines, strict=True):
        found.append(line)
        if row.reason:
            found.append(f"           {row.reason}")
    return found


def _cells(row: Row) -> tuple[str, ...]:
    least = "" if row.is_seen else "from "
    return (
        row.group,
        row.parallel_plan,
        f"{row.devices} x {row.device}",
        "-" if row.batch_s is None else f"{row.batch_s * 1000:.3g} ms",
        "-" if not row.device_bytes else f"{least}{size(row.device_bytes)}",
        "-" if not row.host_bytes else f"{least}{size(row.host_bytes)}",
        "verified" if row.is_verified else "not verified" if row.state == "measured" else "-",
        f"{row.state}{' in an earlier run' if row.is_recalled else ''}",
    )

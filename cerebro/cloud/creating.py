"""Creation: look, take the first step that is left, look again, until none is left.

No plan is kept: after each step the world is observed anew, so the command can be interrupted anywhere, or fail
anywhere, and the next one begins where the world is. A dry run takes the same steps with hands that only show.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.cloud.connecting import connection_lines
from cerebro.cloud.planning import next_step, plan, surplus_groups
from cerebro.cloud.preflight import Finding, Preflight, Verdict, check
from cerebro.cloud.site import Site
from cerebro.cloud.steps import Step, creation
from cerebro.cloud.world import World
from cerebro.errors import ProvisionError

_LONGEST_TO_BE_SEEN_S = 5 * 60.0


def create(site: Site, chart: Path, chart_problem: str | None) -> None:
    """Make what is missing of the cluster; nothing at all if a check fails.

    Args:
        site: of the cluster.
        chart: of the platform.
        chart_problem: why the chart cannot be used, if so.

    Raises:
        ProvisionError: a check failed, or a step; the message says which, and what to do.
    """
    site.show(f"Checking what {site.file.name} in {site.file.region} needs ...")
    found = check(site, chart_problem)
    for finding in found.findings:
        show_finding(site, finding)
    steps = creation(site.file, chart)
    site.zones = found.zones
    if site.is_dry:
        _rehearse(site, steps, found)
        return
    if found.failed:
        raise ProvisionError(
            f"{len(found.failed)} of {len(found.findings)} checks failed (FAIL above). Nothing has been made or changed"
        )
    world = _make(site, steps)
    for name in surplus_groups(site.file, world):
        place = f"--cluster {site.file.name} --region {site.file.region}"
        site.show(f"Node group {name} is not in the file; it is kept, and costs. To remove it:")
        site.show(f"  eksctl delete nodegroup {place} --name {name}")
    site.show(f"{site.file.name} runs.")
    for line in connection_lines(site):
        site.show(line)


def _make(site: Site, steps: list[Step]) -> World:
    world = site.observe()
    while (step := next_step(steps, world)) is not None:
        site.show(f"[{steps.index(step) + 1}/{len(steps)}] {step.name}")
        try:
            step.do(site, world)
            world = site.wait(f"{step.name} to be seen", step.is_done, timeout_s=_LONGEST_TO_BE_SEEN_S)
        except ProvisionError as problem:
            raise ProvisionError(_advice(site, step.name, problem)) from problem
        except KeyboardInterrupt:
            site.show(
                f"Interrupted in step `{step.name}`. What AWS has begun goes on there; give the same command again "
                "to go on from here, or `cerebro cluster delete` to remove it."
            )
            raise
    return world


def _rehearse(site: Site, steps: list[Step], found: Preflight) -> None:
    site.aws.is_offline = not found.has_account
    site.show("" if found.has_account else "Without an answer from AWS, nothing is taken to exist yet.")
    num_left = 0
    for step, world in plan(steps, found.world):
        num_left += 1
        site.show(f"[{steps.index(step) + 1}/{len(steps)}] {step.name}")
        site.imagined = world
        step.do(site, world)
    site.show(
        f"{num_left} of {len(steps)} steps would be taken. This was a dry run: nothing has been made or changed."
    )
    if found.mistakes:
        raise ProvisionError(f"{len(found.mistakes)} checks failed: without --dry-run nothing would be made")


def show_finding(site: Site, finding: Finding) -> None:
    """A line for it, and one for what to do about it."""
    site.show(f"  {finding.verdict:<4}  {finding.name}: {finding.message}")
    if finding.mend and finding.verdict is not Verdict.OK:
        site.show(f"        -> {finding.mend}")


def _advice(site: Site, step: str, problem: ProvisionError) -> str:
    return (
        f"step `{step}` failed: {problem}\n"
        f"  The log: {site.folder / 'cluster.log'}; infra/eksctl/README.md names known causes.\n"
        "  When it is mended, give the same command again: it goes on from this step. `cerebro cluster delete` removes "
        "what there is."
    )

"""Deletion: removes whatever is found, in the order in which things hold on to each other, and proves that all is gone.

A part that cannot be removed does not keep the others: what is left at the end is named, with the command that removes
it. Safe to give again, after a half-made creation as after a half-made deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cerebro.cloud.names import CLUSTER_TAG, cluster_stack
from cerebro.cloud.planning import conflicts, removals
from cerebro.cloud.preflight.account import check_credentials
from cerebro.cloud.preflight.finding import Verdict
from cerebro.cloud.site import Site
from cerebro.cloud.steps import creation, removal
from cerebro.cloud.steps.control_plane import Kubeconfig
from cerebro.cloud.world import World
from cerebro.errors import ProvisionError


def delete(site: Site, chart: Path, confirm: Callable[[str], bool]) -> None:
    """Remove the cluster and everything that bears its name.

    Args:
        site: of the cluster.
        chart: of the platform; need not exist.
        confirm: given what will be removed, says whether to go on.

    Raises:
        ProvisionError: something is left, or AWS cannot be asked; the message says what to do.
    """
    world = _seen(site, chart)
    parts = removal(site.file, chart)
    if not removals(parts, world) and not world.resources:
        site.show(f"Nothing of {site.file.name} is left in {site.file.region}.")
        return
    _refuse_foreign(site, world)
    if not site.is_dry and not confirm(_summary(site, world)):
        site.show("Nothing has been removed.")
        return
    access = Kubeconfig(site.file)
    if world.cluster is not None and world.cluster.status == "ACTIVE" and not access.is_done(world):
        _attempt(
            site, access.name, lambda: access.do(site, world)
        )  # what is inside is removed from inside, if possible
    problems: dict[str, ProvisionError] = {}
    removed: list[str] = []
    now = site.observe(with_resources=True)
    for part in parts:
        if not part.is_there(now):
            continue
        site.show(f"Removing: {part.name}")
        problem = _attempt(site, part.name, lambda part=part, now=now: part.undo(site, now))  # type: ignore[misc]
        if problem is None:
            removed.append(part.name)
        else:
            problems[part.name] = problem
        now = site.observe(with_resources=True)  # what one removes, others may have held
    if site.is_dry:
        site.show("This was a dry run: nothing has been removed.")
        return
    _prove(site, chart, removed, problems)


def _seen(site: Site, chart: Path) -> World:
    account = check_credentials(site.aws)
    if account.verdict is Verdict.OK:
        return site.observe(with_resources=True)
    if not site.is_dry:
        raise ProvisionError(f"{account.name}: {account.message}\n  {account.mend}")
    site.show(f"{account.message}: shown is what would be removed if all of it existed.")
    site.aws.is_offline = True
    world = World()
    for step in creation(site.file, chart):
        world = step.after(world)
    site.imagined = world
    return world


def _refuse_foreign(site: Site, world: World) -> None:
    cluster = world.cluster
    if (
        cluster is None
        or cluster.tags.get(CLUSTER_TAG) == site.file.name
        or cluster_stack(site.file.name) in world.stacks
    ):
        return
    raise ProvisionError(f"{conflicts(site.file, world)[0]}. Nothing has been removed")


def _attempt(site: Site, name: str, undo: Callable[[], None]) -> ProvisionError | None:
    try:
        undo()
    except ProvisionError as problem:
        site.show(f"  {name}: {problem}")
        return problem
    except KeyboardInterrupt:
        site.show(
            f"Interrupted while removing {name}. Give the same command again to go on: what is left costs money."
        )
        raise
    return None


def _summary(site: Site, world: World) -> str:
    kinds = Counter(resource.kind for resource in world.resources)
    found = "".join(f"\n  {count} x {kind}" for kind, count in sorted(kinds.items()))
    stacks = f"\n  {len(world.stacks)} x CloudFormation stack" if world.stacks else ""
    return (
        f"{site.file.name} in {site.file.region}, to be removed:{found}{stacks}\n"
        "With it go all its data: checkpoints, metrics, shards, notebooks, the log of all experiments."
    )


def _prove(site: Site, chart: Path, removed: list[str], problems: dict[str, ProvisionError]) -> None:
    world = site.observe(with_resources=True)
    site.show("Removed: " + (", ".join(removed) or "nothing"))
    left = [
        f"{resource.kind} {resource.id} ({resource.about}): {resource.remove}" for resource in world.resources
    ]
    left += [
        f"stack {name} ({status}): aws cloudformation delete-stack --stack-name {name} --region {site.file.region}"
        for name, status in world.stacks.items()
    ]
    left += [part.name for part in removals(removal(site.file, chart), world) if not left]
    if not left:
        site.kubeconfig.unlink(missing_ok=True)
        site.show(
            f"Looked again: nothing of {site.file.name} is left in {site.file.region} that costs money."
        )
        return
    why = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
    raise ProvisionError(
        "this is left, and may cost money; give the same command again, or remove it by hand:"
        + "".join(f"\n  {line}" for line in left)
        + (f"\nWhat went wrong:{why}" if why else "")
        + f"\nThe log: {site.folder / 'cluster.log'}"
    )

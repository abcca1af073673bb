"""Status: what there is, in which state, and what of it costs money."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cerebro.cloud.planning import surplus_groups
from cerebro.cloud.site import Site
from cerebro.cloud.steps import creation
from cerebro.cloud.world import World


def status_lines(site: Site, chart: Path) -> Iterator[str]:
    """What to show; reads only.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    file, world = site.file, site.observe(with_resources=True)
    if world.cluster is None and not world.resources and not world.stacks:
        yield f"There is nothing of {file.name} in {file.region}."
        return
    yield f"{file.name} in {file.region}"
    yield from _parts(world)
    groups = {group.name: group.count for group in file.workers}
    for name, seen in sorted(world.groups.items()):
        wanted = groups.get(name, 1 if name == "control" else 0)
        kind = "/".join(seen.instance_types) + (" spot" if seen.is_spot else "")
        note = "  (not in the file)" if name in surplus_groups(file, world) else ""
        yield f"  nodes {name:<16} {seen.desired} of {wanted}  {kind}  {seen.status}{note}"
        yield from (f"      {problem}" for problem in seen.problems)
    left = [step.name for step in creation(file, chart) if not step.is_done(world)]
    if left and not (world.groups and not any(group.desired for group in world.groups.values())):
        yield f"  not as in the file: {', '.join(left)}; `cerebro cluster create` makes it so"
    yield "What costs money:"
    by_kind: dict[str, list[str]] = defaultdict(list)
    for resource in world.resources:
        by_kind[resource.kind].append(f"{resource.id} {resource.about}".strip())
    for kind, each in sorted(by_kind.items()):
        yield f"  {kind} x {len(each)}: {', '.join(each)}"


def _parts(world: World) -> Iterator[str]:
    if world.cluster is None:
        yield "  control plane    none"
    else:
        paused = world.groups and not any(group.desired for group in world.groups.values())
        note = ", paused" if paused else ""
        yield f"  control plane    {world.cluster.status}, Kubernetes {world.cluster.version}{note}"
    for name, status in sorted(world.addons.items()):
        if status != "ACTIVE":
            yield f"  addon            {name}: {status}"
    if world.file_system is not None:
        yield f"  file system      {world.file_system.id}: {world.file_system.state}"
    for name, status in sorted(world.stacks.items()):
        if status != "CREATE_COMPLETE":
            yield f"  stack            {name}: {status}"
    if world.kube is None:
        yield "  inside           not looked at (no kubeconfig here, or no answer)"
    else:
        for name, release in sorted(world.kube.releases.items()):
            yield f"  release          {name}: {release.status}"

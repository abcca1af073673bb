"""What of a cluster costs money, asked from each service itself, by ``data/inventory.yaml``.

Not from AWS's index of tags: that one lags by minutes and would name what has just been deleted. Everything is found by
tags of ours, of eksctl or of Kubernetes' controllers, whether or not a cluster still exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cerebro.cloud.aws import Aws
from cerebro.cloud.manifests import data
from cerebro.cloud.names import is_ours, log_group_prefixes
from cerebro.cloud.world import Resource

VOLUME = "volume"
BALANCER = "load balancer"
CLASSIC_BALANCER = "classic load balancer"
LOG_GROUP = "log group"

_TAGS_PER_CALL = 20


def resources(aws: Aws, name: str) -> tuple[Resource, ...]:
    """Everything that costs money and bears the cluster's name.

    Raises:
        AwsError: AWS refused, or did not answer: then nothing may be concluded.
    """
    end = f"--region {aws.region}"
    delete = f"eksctl delete cluster --name {name} {end} --wait"
    clusters = aws.find("eks", "list_clusters", f"clusters[?@ == '{name}']")
    found = [Resource(kind="EKS cluster", id=name, about="", remove=delete) for _ in clusters]
    for kind, how in data("inventory.yaml").items():
        for seen in _listed(aws, name, kind, how):
            if kind == LOG_GROUP or is_ours(name, {tag["Key"]: tag["Value"] for tag in seen["tags"] or ()}):
                about = " ".join(filter(None, seen.get("about") or ()))
                if "bytes" in seen:
                    about = f"{(seen['bytes'] or 0) / 2**30:.1f} GiB"
                remove = f"aws {how['remove']} {seen['id']} {end}"
                found.append(Resource(kind=kind, id=seen["id"], about=about, remove=remove))
    return tuple(found)


def _listed(aws: Aws, name: str, kind: str, how: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    service, operation = how["listed"]
    if kind == LOG_GROUP:
        for prefix in log_group_prefixes(name):
            yield from aws.find(service, operation, how["found"], logGroupNamePrefix=prefix)
        return
    # Unfiltered: filters have no "or" over tags, and a filter that a service does not know hides what costs money.
    found = aws.find(service, operation, how["found"], **how.get("more", {}))
    if "tagged" not in how:
        yield from found
        return
    argument, expression = how["tagged"]
    for first in range(0, len(found), _TAGS_PER_CALL):
        some = found[first : first + _TAGS_PER_CALL]
        yield from aws.find(service, "describe_tags", expression, **{argument: some})

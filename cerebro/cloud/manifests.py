"""What eksctl, kubectl and helm are given: the data in ``data``, with what the cluster file says laid over it. Pure.

Classes and releases carry a fingerprint of what they were made from, so that a later run sees from the cluster itself
whether they are as the file now wants them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import yaml

from cerebro.cloud.clusterfile import ClusterFile, WorkerGroup
from cerebro.cloud.names import FINGERPRINT, GPU_PLUGIN, MONITORING, NAMESPACE, PLATFORM, ZONES_TAG

S3_ACCOUNTS = ("cerebro-worker", "cerebro-controller", "cerebro-notebook")
"""Service accounts of the chart that read objects or metadata."""
_GPU = "nvidia.com/gpu"


@cache
def text(name: str) -> str:
    """A file of ``data`` as it is: a template of CloudFormation, for example."""
    return (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")


@cache
def data(name: str) -> Any:
    """A file of ``data`` without anything to fill in; not to be changed."""
    return yaml.safe_load(text(name))


def _filled(template: str, /, **values: str) -> Any:
    return yaml.safe_load(Template(text(template)).substitute(values))


_PARTS = data("eksctl.yaml")["addons"]
NETWORK_ADDONS = tuple(addon["name"] for addon in _PARTS["network"])
WORKLOAD_ADDONS = tuple(addon["name"] for addon in _PARTS["workload"])
ADDONS = (*NETWORK_ADDONS, *WORKLOAD_ADDONS)


def configuration(
    file: ClusterFile,
    zones: Sequence[str],
    *,
    addons: Collection[str] = ADDONS,
    identities: Collection[str] = S3_ACCOUNTS,
) -> dict[str, Any]:
    """What ``eksctl ... -f`` is given.

    Args:
        file: what is asked for.
        zones: availability zones, the one of the nodes first.
        addons: the ones to name; a later run names only those that are missing, since eksctl refuses what exists.
        identities: likewise, of the service accounts.
    """
    parts = _filled("eksctl.yaml", name=file.name, region=file.region, kubernetes=file.kubernetes)
    common = {**parts["group"], "availabilityZones": [zones[0]], "tags": file.all_tags}
    control = {"instanceType": file.controller.instance_type, "volumeSize": file.controller.root_gib}
    known = [*parts["addons"]["network"], *parts["addons"]["workload"]]
    made: dict[str, Any] = {
        **parts["cluster"],
        "availabilityZones": list(zones),
        "addons": [{**addon, "tags": file.all_tags} for addon in known if addon["name"] in addons],
        "managedNodeGroups": [
            {**common, **parts["control"], **control},
            *(overlaid({**common, **parts["workers"]}, _group(group)) for group in file.workers),
        ],
    }
    made["metadata"]["tags"] = {**file.all_tags, ZONES_TAG: " ".join(zones)}
    if wanted := sorted(wanted_identities(file) & set(identities)):
        made["iam"] = {"podIdentityAssociations": [_identity(file, name) for name in wanted]}
    return made


def wanted_identities(file: ClusterFile) -> frozenset[str]:
    """Service accounts that get an AWS identity."""
    return frozenset(S3_ACCOUNTS if file.s3 else ())


def _group(group: WorkerGroup) -> dict[str, Any]:
    present = (
        {f"{_GPU}.present": "true"} if group.gpus else {}
    )  # the device plugin's own affinity asks for it
    return {
        "name": group.name,
        "instanceType": group.instance_type,
        "maxSize": group.count,
        "desiredCapacity": group.count,
        "spot": group.spot,
        "volumeSize": group.root_gib,
        "labels": {"cerebro/group": group.name, **present},
    }


def _identity(file: ClusterFile, account: str) -> dict[str, Any]:
    buckets = [entry.partition("/") for entry in file.s3]
    special = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    arn = f"arn:{special.get(file.region.rsplit('-', 2)[0], 'aws')}:s3:::"
    listing = sorted({f"{arn}{bucket}" for bucket, _, _ in buckets})
    reading = [f"{arn}{bucket}/{prefix}*" for bucket, _, prefix in buckets]
    statements = [
        {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": listing},
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": reading},
    ]
    return {
        "namespace": NAMESPACE,
        "serviceAccountName": account,
        "tags": file.all_tags,
        "permissionPolicy": {"Version": "2012-10-17", "Statement": statements},
    }


def storage_classes(file: ClusterFile, file_system: str) -> list[dict[str, Any]]:
    """A class for what all share (EFS) and one for the disks of single pods (EBS)."""
    made: list[dict[str, Any]] = _filled("storage-classes.yaml", name=file.name, file_system=file_system)
    for each in made:
        each["metadata"].setdefault("annotations", {})[FINGERPRINT] = fingerprint(each)
    return made


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A release of helm as the file wants it."""

    name: str
    namespace: str
    chart: tuple[str, ...]
    """Arguments that name it, with its version."""
    values: Mapping[str, Any]
    timeout: str
    mark: str
    """Fingerprint of chart and values."""


def release(file: ClusterFile, name: str, chart: Path) -> Wanted:
    """One of the three; `chart` is the platform's."""
    parts = _filled("releases.yaml", name=file.name, region=file.region)[name]
    values, named, content = parts["values"], tuple(parts["chart"]), ""
    if name == PLATFORM:
        values, named, content = _platform(file, values), (str(chart),), chart_fingerprint(chart)
    return Wanted(
        name=name,
        namespace=parts["namespace"],
        chart=named,
        values=values,
        timeout=parts["timeout"],
        mark=fingerprint(content or named, values),
    )


def releases(file: ClusterFile) -> dict[str, str]:
    """How each release that the file asks for is called, by its name; in their order."""
    wanted = {}
    if file.gpus and file.install.gpu_plugin:
        wanted[GPU_PLUGIN] = "GPU device plugin"
    if file.install.monitoring:
        wanted[MONITORING] = "monitoring"
    return {**wanted, PLATFORM: "platform"}


def _platform(file: ClusterFile, values: Mapping[str, Any]) -> dict[str, Any]:
    tolerations = [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}] if file.gpus else []
    given: dict[str, Any] = {
        "images": {"registry": file.images.registry, "worker": {"cuda": file.gpus > 0}},
        "worker": {
            "replicas": file.num_workers,
            "gpus": file.gpus,
            "tolerations": [*values["worker"]["tolerations"], *tolerations],
            "shards": {"size": f"{file.storage.shards_gib}Gi"},
        },
    }
    if file.images.tag is not None:
        given["images"]["tag"] = file.images.tag
    if file.install.monitoring:
        given["monitoring"] = {part: {"enabled": True} for part in ("serviceMonitor", "rules", "dashboard")}
    return overlaid(overlaid(values, given), file.install.chart.values)


def fingerprint(*parts: object) -> str:
    """Of anything JSON can hold; the same for equal parts, whatever the order of their keys."""
    written = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def chart_fingerprint(chart: Path) -> str:
    """Of a chart's content: a folder's files and their names, or an archive's bytes; empty if there is none."""
    if not chart.exists():
        return ""
    digest = hashlib.sha256()
    found = sorted(path for path in chart.rglob("*") if path.is_file()) if chart.is_dir() else [chart]
    for path in found:
        digest.update(str(path.relative_to(chart)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key, as helm does; anything else in `above` replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = overlaid(under, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged

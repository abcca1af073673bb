"""What eksctl, CloudFormation, kubectl and helm are given: ``data``, with what the cluster file says over it. Pure.

Stack, classes and releases carry a fingerprint of what they were made from, so that a later run sees from the cluster
itself whether they are as the file now wants them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import yaml

from cerebro.cloud.clusterfile import ClusterFile, WorkerGroup
from cerebro.cloud.names import FINGERPRINT, GPU_PLUGIN, MONITORING, PLATFORM, ZONES_TAG

STACK = Path(__file__).parent / "data" / "stack.yaml"
"""The template of our stack, for CloudFormation."""
_GPU = "nvidia.com/gpu"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, ten times as fast, where PyYAML was built with it."""


def _filled(template: str, /, **values: str) -> Any:
    text = (Path(__file__).parent / "data" / template).read_text(encoding="utf-8")
    return yaml.load(Template(text).substitute(values) if values else text, Loader=_Loader)


data = cache(_filled)
"""A file of ``data`` without anything filled in; not to be changed."""
ADDONS = tuple(addon["name"] for part in data("eksctl.yaml")["addons"].values() for addon in part)


def configuration(file: ClusterFile, zones: Sequence[str], *, is_whole: bool = True) -> dict[str, Any]:
    """What ``eksctl ... -f`` is given; the nodes are in the first of the zones.

    If not `is_whole`, without nodes, and without the addons that need nodes to run on: eksctl would wait for them.
    """
    parts = _filled("eksctl.yaml", name=file.name, region=file.region, kubernetes=file.kubernetes)
    addons = [*parts["addons"]["network"], *(parts["addons"]["workload"] if is_whole else ())]
    made: dict[str, Any] = {
        **parts["cluster"],
        "availabilityZones": list(zones),
        "addons": [{**addon, "tags": file.all_tags} for addon in addons],
    }
    made["metadata"]["tags"] = {**file.all_tags, ZONES_TAG: " ".join(zones)}
    if is_whole:
        common = {**parts["group"], "availabilityZones": [zones[0]], "tags": file.all_tags}
        own = [parts["control"], *(parts["workers"] for _ in file.workers)]
        groups = zip(file.nodes.values(), own, strict=True)
        made["managedNodeGroups"] = [overlaid({**common, **_group(group)}, role) for group, role in groups]
    return made


def _group(group: WorkerGroup) -> dict[str, Any]:
    # The device plugin's own affinity asks for the label.
    present = {f"{_GPU}.present": "true"} if group.gpus else {}
    return {
        "name": group.name,
        **({"instanceTypes": group.types} if group.fallbacks else {"instanceType": group.instance_type}),
        "maxSize": group.count,
        "desiredCapacity": group.count,
        "spot": group.spot,
        "volumeSize": group.root_gib,
        "labels": {"cerebro/group": group.name, **present},
    }


def stack_parameters(file: ClusterFile, zones: Sequence[str], *, is_attached: bool = True) -> dict[str, str]:
    """Parameters of our stack. Unattached, it is only the file system."""
    special = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    arn = f"arn:{special.get(file.region.rsplit('-', 2)[0], 'aws')}:s3:::"
    buckets = [entry.partition("/") for entry in file.s3]
    return {
        "Cluster": file.name,
        "Attached": "yes" if is_attached else "no",  # no: what is stored outlives a network that is made anew
        "Zones": str(len(zones)),
        "Throughput": file.storage.efs_throughput,
        "Listed": ",".join(sorted({f"{arn}{bucket}" for bucket, _, _ in buckets})),
        "Read": ",".join(f"{arn}{bucket}/{prefix}*" for bucket, _, prefix in buckets),
    }


def stack_fingerprint(file: ClusterFile, parameters: Mapping[str, str]) -> str:
    """Of the stack as the file wants it."""
    return fingerprint(STACK.read_text(encoding="utf-8"), parameters, file.all_tags)


def storage_classes(file: ClusterFile, file_system: str) -> list[dict[str, Any]]:
    """A class for what all share (EFS) and one for the disks of single pods (EBS)."""
    made: list[dict[str, Any]] = _filled("storage-classes.yaml", name=file.name, file_system=file_system)
    for each in made:
        each["metadata"].setdefault("annotations", {})[FINGERPRINT] = fingerprint(each)
    return made


class Wanted(NamedTuple):
    """A release of helm as the file wants it."""

    name: str
    namespace: str
    chart: tuple[str, ...]
    """Arguments that name it, with its version."""
    values: Mapping[str, Any]
    timeout: str
    mark: str
    """Fingerprint of chart and values."""


def releases(file: ClusterFile, chart: Path) -> dict[str, Wanted]:
    """The releases that the file asks for, in their order, by what messages call them; `chart` is the platform's."""
    parts = _filled("releases.yaml", name=file.name, region=file.region)
    named = {"GPU device plugin": GPU_PLUGIN, "monitoring": MONITORING, "platform": PLATFORM}
    if not (file.gpus and file.install.gpu_plugin):
        del named["GPU device plugin"]
    if not file.install.monitoring:
        del named["monitoring"]
    made = {}
    for title, name in named.items():
        values, arguments = parts[name]["values"], tuple(parts[name]["chart"])
        content: Any = arguments
        if name == PLATFORM:
            values, arguments, content = _platform(file, values), (str(chart),), chart_fingerprint(chart)
        mark = fingerprint(content, values)
        made[title] = Wanted(name, parts[name]["namespace"], arguments, values, parts[name]["timeout"], mark)
    return made


def _platform(file: ClusterFile, values: Mapping[str, Any]) -> dict[str, Any]:
    gpu = {"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}
    given: dict[str, Any] = {
        "images": {"registry": file.images.registry, "worker": {"cuda": file.gpus > 0}},
        "worker": {
            "replicas": file.num_workers,
            "gpus": file.gpus,
            "tolerations": [*values["worker"]["tolerations"], *([gpu] if file.gpus else [])],
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

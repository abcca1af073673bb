"""Input of eksctl, CloudFormation, kubectl and helm: templates from ``data``, filled from the cluster file. Pure.

`steps` writes the results to files and runs the tools with them.

The stack, storage classes and releases carry a fingerprint of their input, so a later run sees in the cluster whether
they match the file.
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
"""Template of Cerebro's CloudFormation stack."""
_GPU = "nvidia.com/gpu"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader, ten times as fast, if PyYAML has it."""


def _filled(template: str, /, **values: str) -> Any:
    text = (Path(__file__).parent / "data" / template).read_text(encoding="utf-8")
    return yaml.load(Template(text).substitute(values) if values else text, Loader=_Loader)


data = cache(_filled)
"""Return a file of ``data`` without values; do not change the result."""
ADDONS = tuple(addon["name"] for part in data("eksctl.yaml")["addons"].values() for addon in part)


def configuration(file: ClusterFile, zones: Sequence[str], *, is_whole: bool = True) -> dict[str, Any]:
    """Return the configuration for ``eksctl ... -f``, with the nodes in the first zone.

    Args:
        is_whole: False omits nodes and addons that need nodes, because eksctl would wait for them.
    """
    parts = _filled("eksctl.yaml", name=file.name, region=file.region, kubernetes=file.kubernetes)
    addons = [*parts["addons"]["network"], *(parts["addons"]["workload"] if is_whole else ())]
    result: dict[str, Any] = {
        **parts["cluster"],
        "availabilityZones": list(zones),
        "addons": [{**addon, "tags": file.all_tags} for addon in addons],
    }
    result["metadata"]["tags"] = {**file.all_tags, ZONES_TAG: " ".join(zones)}
    if is_whole:
        common = {**parts["group"], "availabilityZones": [zones[0]], "tags": file.all_tags}
        roles = [parts["control"], *(parts["workers"] for _ in file.workers)]
        groups = zip(file.nodes.values(), roles, strict=True)
        result["managedNodeGroups"] = [overlaid({**common, **_group(group)}, role) for group, role in groups]
    return result


def _group(group: WorkerGroup) -> dict[str, Any]:
    # The device plugin's affinity needs the label.
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
    """Return the parameters of Cerebro's stack.

    Args:
        is_attached: False keeps only the file system, without a network.
    """
    special = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    arn = f"arn:{special.get(file.region.rsplit('-', 2)[0], 'aws')}:s3:::"
    buckets = [entry.partition("/") for entry in file.s3]
    return {
        "Cluster": file.name,
        "Attached": "yes" if is_attached else "no",  # No: the data outlives a network that is created again.
        "Zones": str(len(zones)),
        "Throughput": file.storage.efs_throughput,
        "Listed": ",".join(sorted({f"{arn}{bucket}" for bucket, _, _ in buckets})),
        "Read": ",".join(f"{arn}{bucket}/{prefix}*" for bucket, _, prefix in buckets),
    }


def stack_fingerprint(file: ClusterFile, parameters: Mapping[str, str]) -> str:
    """Return the fingerprint of the stack for this file."""
    return fingerprint(STACK.read_text(encoding="utf-8"), parameters, file.all_tags)


def storage_classes(file: ClusterFile, file_system: str) -> list[dict[str, Any]]:
    """Return the storage classes for the shared file system (EFS) and for disks of single pods (EBS)."""
    result: list[dict[str, Any]] = _filled("storage-classes.yaml", name=file.name, file_system=file_system)
    for each in result:
        each["metadata"].setdefault("annotations", {})[FINGERPRINT] = fingerprint(each)
    return result


class Wanted(NamedTuple):
    """A helm release as the file describes it."""

    name: str
    namespace: str
    chart: tuple[str, ...]
    """Arguments that name the chart, with its version."""
    values: Mapping[str, Any]
    timeout: str
    mark: str
    """Fingerprint of chart and values."""


def releases(file: ClusterFile, chart: Path) -> dict[str, Wanted]:
    """Return title -> release, in their order; `chart` is the platform's chart."""
    parts = _filled("releases.yaml", name=file.name, region=file.region)
    named = {"GPU device plugin": GPU_PLUGIN, "monitoring": MONITORING, "platform": PLATFORM}
    if not (file.gpus and file.install.gpu_plugin):
        del named["GPU device plugin"]
    if not file.install.monitoring:
        del named["monitoring"]
    result = {}
    for title, name in named.items():
        values, arguments = parts[name]["values"], tuple(parts[name]["chart"])
        content: Any = arguments
        if name == PLATFORM:
            values, arguments, content = _platform(file, values), (str(chart),), chart_fingerprint(chart)
        mark = fingerprint(content, values)
        result[title] = Wanted(
            name, parts[name]["namespace"], arguments, values, parts[name]["timeout"], mark
        )
    return result


def _platform(file: ClusterFile, values: Mapping[str, Any]) -> dict[str, Any]:
    gpu = {"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}
    settings: dict[str, Any] = {
        "images": {"registry": file.images.registry, "worker": {"cuda": file.gpus > 0}},
        "worker": {
            "replicas": file.num_workers,
            "gpus": file.gpus,
            "tolerations": [*values["worker"]["tolerations"], *([gpu] if file.gpus else [])],
            "shards": {"size": f"{file.storage.shards_gib}Gi"},
        },
    }
    if file.images.tag is not None:
        settings["images"]["tag"] = file.images.tag
    if file.install.monitoring:
        settings["monitoring"] = {
            part: {"enabled": True} for part in ("serviceMonitor", "rules", "dashboard")
        }
    return overlaid(overlaid(values, settings), file.install.chart.values)


def fingerprint(*parts: object) -> str:
    """Return the fingerprint of JSON values, independent of the order of keys."""
    written = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def chart_fingerprint(chart: Path) -> str:
    """Return the fingerprint of a chart's files or archive, or an empty text without a chart."""
    if not chart.exists():
        return ""
    digest = hashlib.sha256()
    found = sorted(path for path in chart.rglob("*") if path.is_file()) if chart.is_dir() else [chart]
    for path in found:
        digest.update(str(path.relative_to(chart)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key, as helm does; other values in `above` replace those in `below`."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = overlaid(under, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged

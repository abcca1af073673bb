"""The cluster file of ``cerebro cluster`` (YAML): its fields, and checks that need only the file.

`cerebro.cloud.site` reads it. Each mistake is reported with its line.

Unknown fields, wrong types and repeated keys are mistakes. `cerebro.cloud.preflight` checks what AWS knows: instance
types and their GPUs, regions, versions, zones, quotas.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from cerebro.cloud.names import CLUSTER_TAG, CONTROL_GROUP, FINGERPRINT, ZONES_TAG
from cerebro.errors import ClusterFileError
from cerebro.runtime import checked_yaml
from cerebro.runtime.checked_yaml import Part

Gib = Annotated[int, Field(ge=1, le=16384)]


class Controller(Part):
    """Node of the control plane; always on demand, because a run needs it."""

    instance_type: str
    root_gib: Gib = 50
    """GiB of its root volume, for images and logs."""


class WorkerGroup(Part):
    """Nodes of one kind; each runs one worker."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]
    instance_type: str
    count: Annotated[int, Field(ge=1, le=1000)]
    fallbacks: Annotated[list[str], Field(max_length=19)] = Field(default_factory=list)
    """Further instance types for when AWS lacks the first: on demand in this order, as spot by availability. Workers
    must fit the smallest, and all types need the GPUs.
    """
    spot: bool = False
    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs of a worker; at most as many as the instance type has."""
    root_gib: Gib = 100
    """GiB of a node's root volume; the worker image with CUDA takes about 15."""

    @property
    def types(self) -> list[str]:
        """All instance types, `instance_type` first."""
        return [self.instance_type, *self.fallbacks]

    @model_validator(mode="after")
    def _names_each_once(self) -> WorkerGroup:
        repeated = sorted({name for name in self.types if self.types.count(name) > 1})
        if repeated:
            raise ValueError(f"names {repeated[0]} twice: `fallbacks` are other types than `instance_type`")
        return self


class Storage(Part):
    """Volumes: a disk (EBS gp3) for each worker's shards, and a shared file system (EFS)."""

    shards_gib: Gib = 100
    """GiB per worker for its training partition, downloads and user environments."""
    efs_throughput: Literal["elastic", "bursting"] = "elastic"
    """Elastic is billed by bytes moved; bursting is free, but slow while little is stored."""


class Images(Part):
    """Source of the images."""

    registry: Annotated[str, StringConstraints(min_length=1)]
    """Registry of ``make images REGISTRY=...``, such as ``123456789012.dkr.ecr.us-east-1.amazonaws.com``."""
    tag: str | None = None
    """Default: the chart's version."""


class Chart(Part):
    """The platform's chart."""

    path: str | None = None
    """Folder or archive, relative to the cluster file. Default: ``deploy/helm/cerebro`` of the checkout."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Values that override those made from this file."""


class Install(Part):
    """Additional software for the cluster."""

    gpu_plugin: bool = True
    """NVIDIA's device plugin, if a group has GPUs; false if the nodes' image has its own."""
    monitoring: bool = False
    """Prometheus and Grafana (the chart kube-prometheus-stack)."""
    chart: Chart = Chart()


class ClusterFile(Part):
    """The whole cluster file."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    region: Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
    kubernetes: str
    """Minor version, such as ``"1.34"``."""
    zones: Annotated[list[str], Field(min_length=2, max_length=3)] | None = None
    """Availability zones of the network; nodes and their disks are in the first. Default: chosen by their instance
    types.
    """
    controller: Controller
    workers: list[WorkerGroup]
    storage: Storage = Storage()
    images: Images
    s3: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$")]] = Field(
        default_factory=list
    )
    """Buckets, or ``bucket/prefix``, that workers and controller can read without keys."""
    install: Install = Install()
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of all resources, for the bill."""

    @property
    def num_workers(self) -> int:
        """Number of workers in all groups."""
        return sum(group.count for group in self.workers)

    @property
    def gpus(self) -> int:
        """GPUs per worker, the same in all groups."""
        return self.workers[0].gpus

    @property
    def nodes(self) -> dict[str, WorkerGroup]:
        """Node groups by their field in the file, such as ``workers[0]``; the control plane's first."""
        kind, root_gib = self.controller.instance_type, self.controller.root_gib
        control = WorkerGroup(name=CONTROL_GROUP, instance_type=kind, count=1, root_gib=root_gib)
        return {
            "controller": control,
            **{f"workers[{index}]": each for index, each in enumerate(self.workers)},
        }

    @property
    def counts(self) -> dict[str, int]:
        """Node group -> number of nodes."""
        return {group.name: group.count for group in self.nodes.values()}

    @property
    def all_tags(self) -> dict[str, str]:
        """The user's tags and the cluster's own."""
        return {**self.tags, CLUSTER_TAG: self.name}

    @property
    def instance_types(self) -> list[str]:
        """All instance types, sorted."""
        return sorted({kind for group in self.nodes.values() for kind in group.types})

    @field_validator("kubernetes", mode="before")
    @classmethod
    def _is_version(cls, value: object) -> object:
        if isinstance(value, int | float):
            raise ValueError(
                f'write it in quotes, such as "1.34": without them YAML reads the number {value}'
            )
        if isinstance(value, str) and not re.fullmatch(r"1\.\d{2}", value):
            raise ValueError(f'must be a minor version such as "1.34", not {value!r}')
        return value

    @field_validator("workers")
    @classmethod
    def _has_workers(cls, groups: list[WorkerGroup]) -> list[WorkerGroup]:
        if not groups:
            raise ValueError("names no group: at least one with at least one worker is needed")
        names = [group.name for group in groups]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two groups are named {repeated[0]!r}: names must differ")
        if CONTROL_GROUP in names:
            raise ValueError(f"the name {CONTROL_GROUP!r} is the control plane's: take another one")
        if len({group.gpus for group in groups}) > 1:
            counts = ", ".join(f"{group.name} {group.gpus}" for group in groups)
            raise ValueError(
                f"all groups must have the same `gpus`, because workers are replicas of one pod; here: {counts}"
            )
        return groups

    @field_validator("tags")
    @classmethod
    def _are_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for key in tags:
            if key.lower().startswith("aws:") or key in (CLUSTER_TAG, ZONES_TAG, FINGERPRINT):
                raise ValueError(f"the key {key!r} is reserved")
        return tags


# --- reading -------------------------------------------------------------------------------------


def read(path: Path) -> ClusterFile:
    """Read a cluster file.

    Raises:
        ClusterFileError: the file cannot be read or has mistakes. The message has file, line and field of each.
    """
    return checked_yaml.read(
        path, ClusterFile, ClusterFileError, example="infra/eksctl/cluster.yaml is one to begin with"
    )

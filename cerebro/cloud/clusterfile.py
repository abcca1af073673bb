"""The cluster file: what a user asks for, checked as far as only the file is concerned, each mistake with its line.

Strict: an unknown field is a mistake, a text is no number, a key given twice is refused. What AWS knows (instance types
and their GPUs, regions, versions, zones, quotas) is asked by `cerebro.cloud.preflight`.
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
    """The node of the control plane: always on demand, because it must not vanish in a run."""

    instance_type: str
    root_gib: Gib = 50
    """GiB of its root volume: images and logs."""


class WorkerGroup(Part):
    """Nodes of one kind; each runs one worker."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]
    instance_type: str
    count: Annotated[int, Field(ge=1, le=1000)]
    fallbacks: Annotated[list[str], Field(max_length=19)] = Field(default_factory=list)
    """Instance types to take where AWS has none of the first: on demand in this order, as spot whichever it has most
    of. Workers run on the smallest, and all have the GPUs."""
    spot: bool = False
    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs of a worker; at most what the instance type has."""
    root_gib: Gib = 100
    """GiB of a node's root volume; the worker image with CUDA takes about 15 of them."""

    @property
    def types(self) -> list[str]:
        """Instance types, the first one first."""
        return [self.instance_type, *self.fallbacks]

    @model_validator(mode="after")
    def _names_each_once(self) -> WorkerGroup:
        twice = sorted({name for name in self.types if self.types.count(name) > 1})
        if twice:
            raise ValueError(f"names {twice[0]} twice: `fallbacks` are other types than `instance_type`")
        return self


class Storage(Part):
    """Volumes: a disk (EBS gp3) for the shards of each worker, a file system (EFS) for what all share."""

    shards_gib: Gib = 100
    """GiB per worker: its training partition, downloads and user environments."""
    efs_throughput: Literal["elastic", "bursting"] = "elastic"
    """Elastic is paid by the byte moved; bursting is free but slow while little is stored."""


class Images(Part):
    """Where the nodes pull the images from."""

    registry: Annotated[str, StringConstraints(min_length=1)]
    """What ``make images REGISTRY=...`` pushed to, such as ``123456789012.dkr.ecr.us-east-1.amazonaws.com``."""
    tag: str | None = None
    """The chart's own version if not given."""


class Chart(Part):
    """The platform's chart."""

    path: str | None = None
    """A folder or an archive; relative to the cluster file. The checkout's ``deploy/helm/cerebro`` if not given."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Laid over the values made from this file."""


class Install(Part):
    """What is installed into the cluster beside what it needs to run."""

    gpu_plugin: bool = True
    """NVIDIA's device plugin, where a group has GPUs; false if the machines' image brings its own."""
    monitoring: bool = False
    """Prometheus and Grafana (the chart kube-prometheus-stack)."""
    chart: Chart = Chart()


class ClusterFile(Part):
    """All of it."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    region: Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
    kubernetes: str
    """Minor version, such as ``"1.34"``."""
    zones: Annotated[list[str], Field(min_length=2, max_length=3)] | None = None
    """Availability zones of the network; nodes and their disks live in the first. Chosen by what they offer if not
    given."""
    controller: Controller
    workers: list[WorkerGroup]
    storage: Storage = Storage()
    images: Images
    s3: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$")]] = Field(
        default_factory=list
    )
    """Buckets, or ``bucket/prefix``, that workers and controller may read, without keys."""
    install: Install = Install()
    tags: dict[str, str] = Field(default_factory=dict)
    """On everything that is made, for the bill."""

    @property
    def num_workers(self) -> int:
        """Workers over all groups."""
        return sum(group.count for group in self.workers)

    @property
    def gpus(self) -> int:
        """GPUs per worker: the same in all groups."""
        return self.workers[0].gpus

    @property
    def nodes(self) -> dict[str, WorkerGroup]:
        """Every node group by the field that describes it; the first is the control plane's."""
        kind, root_gib = self.controller.instance_type, self.controller.root_gib
        control = WorkerGroup(name=CONTROL_GROUP, instance_type=kind, count=1, root_gib=root_gib)
        return {
            "controller": control,
            **{f"workers[{index}]": each for index, each in enumerate(self.workers)},
        }

    @property
    def counts(self) -> dict[str, int]:
        """Nodes of each node group."""
        return {group.name: group.count for group in self.nodes.values()}

    @property
    def all_tags(self) -> dict[str, str]:
        """The user's and the one that the cluster's parts are found by."""
        return {**self.tags, CLUSTER_TAG: self.name}

    @property
    def instance_types(self) -> list[str]:
        """Each once, sorted."""
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
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two groups are named {twice[0]!r}: names must differ")
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
    """The cluster file at a path.

    Raises:
        ClusterFileError: it cannot be read or has mistakes; the message has a line for each, with file, line and field.
    """
    return checked_yaml.read(
        path, ClusterFile, ClusterFileError, example="infra/eksctl/cluster.yaml is one to begin with"
    )


def parse(text: str, source: str) -> ClusterFile:
    """The cluster file of a text; `source` is named in messages."""
    return checked_yaml.parse(text, source, ClusterFile, ClusterFileError)

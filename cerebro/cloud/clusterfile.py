"""The cluster file: what a user asks for, checked as far as that can be done offline.

Strict: an unknown field is a mistake, a text is no number. What only AWS knows (instance types, regions, versions,
quotas) is asked by `cerebro.cloud.preflight`; what is wrong whatever AWS says is refused here. Where a field
stands in the file is the matter of `cerebro.cloud.reading`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from cerebro.cloud.names import CLUSTER_TAG, CONTROL_GROUP, ZONES_TAG

_INSTANCE_TYPE = re.compile(
    r"(?P<family>[a-z]+\d+[a-z0-9-]*)\.(?P<size>nano|micro|small|medium|large|metal|\d*xlarge"
    r"|metal-\d+xl)"
)
_GPU_FAMILIES = re.compile(r"(g|p|gr)\d")
_AMD_GPU_FAMILIES = ("g4ad",)
_ARM_FAMILIES = re.compile(r"a1|[a-z]+\d+[a-z]*g[a-z]*")
"""Graviton: a ``g`` behind the generation (m7g, c7gn, g5g); what stands before it is the family's own letter."""
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_MOST_TAGS = 40
"""AWS takes 50 per resource; eksctl and Kubernetes need some."""

_OLDEST_MINOR = 30
"""EKS supports no older one, not even in its extended support."""

Gib = Annotated[int, Field(ge=1, le=16384)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


def _instance_type(value: str) -> str:
    found = _INSTANCE_TYPE.fullmatch(value)
    if found is None:
        raise ValueError(
            f"{value!r} has not the shape of an EC2 instance type, such as m6i.large or g5.xlarge"
        )
    if _ARM_FAMILIES.fullmatch(found["family"]):
        raise ValueError(
            f"{value} has ARM processors, the images are built for x86-64: take a type such as m6i.large"
        )
    return value


class Controller(_Part):
    """The node of the control plane: always on demand, because it must not vanish in a run."""

    instance_type: str
    root_gib: Gib = 50
    """GiB of its root volume: images and logs."""

    _shape = field_validator("instance_type")(_instance_type)


class WorkerGroup(_Part):
    """Nodes of one kind; each runs one worker."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]
    instance_type: str
    count: Annotated[int, Field(ge=1, le=1000)]
    spot: bool = False
    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs of a worker; at most what the instance type has."""
    root_gib: Gib = 100
    """GiB of a node's root volume; the worker image with CUDA takes about 15 of them."""

    _shape = field_validator("instance_type")(_instance_type)

    @property
    def family(self) -> str:
        """Such as ``g5``."""
        return self.instance_type.partition(".")[0]

    @model_validator(mode="after")
    def _has_gpus(self) -> WorkerGroup:
        if self.gpus and self.family in _AMD_GPU_FAMILIES:
            raise ValueError(
                f"gpus: {self.instance_type} has AMD GPUs, CUDA needs NVIDIA's: take g4dn, g5, g6 or p types"
            )
        if self.gpus and not _GPU_FAMILIES.match(self.family):
            raise ValueError(
                f"gpus: {self.gpus} asked for, but {self.instance_type} has none: take a g or p type such as "
                "g5.xlarge, or leave `gpus` out"
            )
        return self


class Storage(_Part):
    """Volumes: a disk (EBS gp3) for the shards of each worker, a file system (EFS) for what all share."""

    shards_gib: Gib = 100
    """GiB per worker: its training partition, downloads and user environments."""
    efs_throughput: Literal["elastic", "bursting"] = "elastic"
    """Elastic is paid by the byte moved; bursting is free but slow while little is stored."""


class Images(_Part):
    """Where the nodes pull the images from."""

    registry: Annotated[str, StringConstraints(min_length=1)]
    """What ``make images REGISTRY=...`` pushed to, such as ``123456789012.dkr.ecr.us-east-1.amazonaws.com``."""
    tag: str | None = None
    """The chart's own version if not given."""


class Chart(_Part):
    """The platform's chart."""

    path: str | None = None
    """A folder or an archive; relative to the cluster file. The checkout's ``deploy/helm/cerebro`` if not given."""
    values: dict[str, Any] = {}
    """Laid over the values made from this file."""


class Install(_Part):
    """What is installed into the cluster beside what it needs to run."""

    gpu_plugin: bool = True
    """NVIDIA's device plugin, where a group has GPUs; false if the machines' image brings its own."""
    monitoring: bool = False
    """Prometheus and Grafana (the chart kube-prometheus-stack)."""
    chart: Chart = Chart()


class ClusterFile(_Part):
    """All of it."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    region: str
    kubernetes: str
    """Minor version, such as ``"1.33"``."""
    zones: Annotated[list[str], Field(min_length=2, max_length=3)] | None = None
    """Availability zones of the network; nodes and their disks live in the first. Chosen by what they offer if not
    given."""
    controller: Controller
    workers: list[WorkerGroup]
    storage: Storage = Storage()
    images: Images
    s3: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$")]] = []
    """Buckets, or ``bucket/prefix``, that workers and controller may read, without keys."""
    install: Install = Install()
    tags: dict[str, str] = {}
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
    def all_tags(self) -> dict[str, str]:
        """The user's and the one that the cluster's parts are found by."""
        return {**self.tags, CLUSTER_TAG: self.name}

    @property
    def instance_types(self) -> list[str]:
        """Each once, sorted."""
        return sorted({self.controller.instance_type, *(group.instance_type for group in self.workers)})

    @field_validator("kubernetes", mode="before")
    @classmethod
    def _is_version(cls, value: object) -> object:
        if isinstance(value, int | float):
            raise ValueError(
                f'write it in quotes, such as "1.33": without them YAML reads the number {value}'
            )
        if isinstance(value, str) and not re.fullmatch(r"1\.\d{2}", value):
            raise ValueError(f'must be a minor version such as "1.33", not {value!r}')
        if isinstance(value, str) and int(value.partition(".")[2]) < _OLDEST_MINOR:
            raise ValueError(
                f"clusters are made with Kubernetes 1.{_OLDEST_MINOR} or newer, not {value}: EKS supports no older one"
            )
        return value

    @field_validator("region")
    @classmethod
    def _is_region(cls, value: str) -> str:
        if not _REGION.fullmatch(value):
            raise ValueError(
                f"{value!r} has not the shape of an AWS region, such as us-east-1 or eu-central-1"
            )
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
        for key, value in tags.items():
            if key.lower().startswith("aws:") or key in (CLUSTER_TAG, ZONES_TAG):
                raise ValueError(f"the key {key!r} is reserved")
            if not 1 <= len(key) <= 128 or len(value) > 256:
                raise ValueError(f"{key[:40]!r}: a key has 1 to 128 characters, a value at most 256")
        if len(tags) > _MOST_TAGS:
            raise ValueError(
                f"{len(tags)} tags, at most {_MOST_TAGS} fit beside those of eksctl and Kubernetes"
            )
        return tags

    @model_validator(mode="after")
    def _zones_are_of_region(self) -> ClusterFile:
        for zone in self.zones or ():
            if not re.fullmatch(rf"{self.region}[a-z]", zone):
                raise ValueError(
                    f"zones: {zone!r} is no availability zone of {self.region}, such as {self.region}a"
                )
        if len(set(self.zones or ())) < len(self.zones or ()):
            raise ValueError("zones: one is named twice; EKS needs two that differ")
        return self

"""Renders the chart, once per set of values and test session."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import helm

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "cerebro"
NAMESPACE = "lab"
RELEASE = "cerebro"

Object = dict[str, Any]

_TIMEOUT_S = 60.0

VALUES: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "gpus": {
        "images": {"registry": "registry.example.org:5000/team", "tag": "9.9", "worker": {"cuda": True}},
        "worker": {
            "gpus": 4,
            "runtimeClassName": "nvidia",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "resources": {"worker": {"requests": {"cpu": "8"}, "limits": {"cpu": "16", "memory": "96Gi"}}},
        },
    },
    "external-redis": {
        "redis": {"external": {"enabled": True, "existingSecret": "our-redis"}},
        "networkPolicy": {"egress": {"redis": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}},
    },
    "bare": {
        "notebook": {"enabled": False},
        "tensorboard": {"enabled": False},
        "kvsApi": {"replicas": 1, "podDisruptionBudget": {"enabled": False}},
        "priorityClasses": {"create": False},
        "networkPolicy": {"enabled": False},
        "worker": {"replicas": 1, "topologySpreadConstraints": []},
    },
    "ingress": {
        "dispatcher": {
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "cerebro.example.org",
                "tlsSecret": "page-tls",
            },
            "publicHosts": ["cerebro.internal"],
        },
        "notebook": {"ingress": {"enabled": True, "host": "notebook.example.org", "isTls": True}},
        "networkPolicy": {
            "ingress": {
                "dispatcher": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
                "notebook": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
                "tensorboard": [{"podSelector": {"matchLabels": {"app": "viewer"}}}],
            },
            "egress": {"peers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        },
    },
    "existing": {
        "auth": {"existingSecret": "our-auth"},
        "objectStore": {
            "existingSecret": "our-bucket",
            "endpoint": "http://minio.minio:9000",
            "region": "eu-west-1",
            "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/data"},
        },
        "storage": {
            name: {"existingClaim": f"our-{name}"} for name in ("checkpoints", "metrics", "code", "shared")
        },
        "notebook": {"home": {"existingClaim": "our-home"}},
        "images": {
            "pullSecrets": ["our-registry"],
            "control": {"digest": "sha256:" + "ab" * 32},
        },
        "priorityClasses": {"create": False, "worker": {"name": "batch"}},
    },
    "object-store": {
        "objectStore": {
            "existingSecret": "our-bucket",
            "endpoint": "http://minio.minio:9000",
            "region": "eu-west-1",
            "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/data"},
        },
        "dispatcher": {"objectStore": {"enabled": True, "existingSecret": "our-reading-bucket"}},
        "networkPolicy": {
            "egress": {"objectStore": {"peers": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "port": 9443}}
        },
    },
    "many": {
        "worker": {
            "replicas": 60,
            "cores": 4,
            "devices": 2,
            "weight": 2.5,
            "graceS": 60,
            "savepointS": 0,
            "shards": {"size": "100Gi", "className": "gp3", "whenScaled": "Delete"},
            "extraEnv": [{"name": "HF_HOME", "value": "/volumes/shared/hf"}],
        },
        "kvsApi": {"replicas": 4, "podDisruptionBudget": {"minAvailable": 3}},
        "controller": {"replicas": 2, "leaseS": 15, "openRuns": 3},
        "dispatcher": {"replicas": 2, "service": {"type": "NodePort", "nodePort": 30080}},
        "notebook": {"service": {"type": "LoadBalancer"}},
        "storage": {"className": "efs-sc", "podClassName": "-", "accessMode": "ReadWriteMany"},
        "controlPlane": {"nodeSelector": {"pool": "control"}},
        "commonLabels": {"team": "vision"},
    },
    "monitoring": {
        "monitoring": {
            "serviceMonitor": {"enabled": True, "intervalS": 15, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True, "labels": {"team": "vision"}},
        },
        "logs": {"format": "text"},
        "dispatcher": {
            "links": {"grafana": "https://grafana.example.org/d/cerebro"},
            "auth": {"header": "X-Forwarded-User", "proxies": ["10.0.0.0/8", "192.168.1.7"]},
        },
    },
}
"""The matrix: every switch in both positions at least once."""


class HelmError(Exception):
    """Helm refused; the message is what it said."""


@dataclass(frozen=True)
class Rendered:
    """All objects of one set of values."""

    objects: tuple[Object, ...]

    def of(self, kind: str) -> tuple[Object, ...]:
        """Objects of a kind."""
        return tuple(one for one in self.objects if one["kind"] == kind)

    def get(self, kind: str, name: str) -> Object:
        """One object; `name` without the release's."""
        (found,) = (one for one in self.of(kind) if one["metadata"]["name"] == f"{RELEASE}-{name}")
        return found

    def has(self, kind: str, name: str) -> bool:
        """Whether there is one; `name` in full."""
        return any(one["metadata"]["name"] == name for one in self.of(kind))

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Component and pod template (metadata, spec) of everything that becomes pods."""
        for one in self.objects:
            if one["kind"] == "Pod":
                yield component(one), one
            elif one["kind"] in ("Deployment", "StatefulSet"):
                yield component(one), one["spec"]["template"]

    def pod(self, name: str) -> Object:
        """Pod template of one component."""
        return dict(self.pods())[name]

    def containers(self) -> Iterator[tuple[str, Object]]:
        """``component/container`` and the container; those that run before the others included."""
        for name, pod in self.pods():
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
                yield f"{name}/{container['name']}", container

    def services(self) -> Iterator[tuple[str, Object]]:
        """``component/container`` and the container, of those that stay."""
        for name, pod in self.pods():
            for container in pod["spec"]["containers"]:
                yield f"{name}/{container['name']}", container


def component(one: Object) -> str:
    """The component an object belongs to."""
    return str(one["metadata"]["labels"].get("app.kubernetes.io/component", ""))


def render(values: str) -> Rendered:
    """The chart with one set of `VALUES`."""
    return render_with(VALUES[values])


def render_with(values: Mapping[str, Any]) -> Rendered:
    """The chart with values of the test's own.

    Raises:
        HelmError: they are refused.
    """
    return _parsed(text_with(values))


@functools.cache
def _parsed(text: str) -> Rendered:
    return Rendered(tuple(parse(text)))


def text_with(values: Mapping[str, Any]) -> str:
    """What ``helm template`` prints for them: the same text at each call.

    Raises:
        HelmError: they are refused.
    """
    return _text(json.dumps(values, sort_keys=True))


@functools.cache
def _text(values: str) -> str:
    return template(CHART, values)


def template(chart: Path, values: str) -> str:
    """What ``helm template`` prints for `values` (JSON).

    Raises:
        HelmError: it fails.
    """
    return run("template", RELEASE, str(chart), "--namespace", NAMESPACE, "--values", "-", stdin=values)


def run(*arguments: str, stdin: str = "") -> str:
    """Output of a helm command.

    Raises:
        HelmError: it fails.
    """
    done = subprocess.run(
        [str(helm()), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, "GOGC": "off"},  # it ends before its garbage is worth collecting
    )
    if done.returncode:
        raise HelmError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def parse(text: str) -> Iterator[Object]:
    """Objects of a stream of YAML documents."""
    return (one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one)

"""A release of the chart on the stand-in cluster, managed by Helm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.deploy.chart.rendering import CHART, NAMESPACE, RELEASE, run
from tests.deploy.cluster.objects import DEFAULT_CLASS, FREE, Json, Objects


class Cluster:
    """A stand-in cluster of one node with a release of the chart."""

    def __init__(self, objects: Objects, address: str) -> None:
        self.objects, self._address = objects, address

    def helm(
        self, command: str, *arguments: str, values: Mapping[str, Any] | None = None, chart: Path = CHART
    ) -> str:
        """Run a Helm command on the release and return its output."""
        flags = ["--namespace", NAMESPACE, "--kube-apiserver", self._address, "--qps", "10000"]
        if command in ("install", "upgrade"):
            # The stand-in has no schemas; test_schemas validates the objects.
            flags += [str(chart), "--disable-openapi-validation", "--values", "-"]
        return run(command, RELEASE, *arguments, *flags, stdin=json.dumps(values or {}))

    def fixed(self) -> Mapping[str, Json]:
        """Return the immutable fields of all claims and StatefulSets."""
        return {
            f"{resource}/{one['metadata']['name']}": {
                name: value for name, value in one["spec"].items() if name not in free
            }
            for resource, free in FREE.items()
            for one in self.objects.all(resource)
        }


def storage_class(name: str, *, is_default: bool) -> Json:
    annotations = {DEFAULT_CLASS: "true"} if is_default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": "rancher.io/local-path",
    }

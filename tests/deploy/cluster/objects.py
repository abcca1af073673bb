"""A stand-in for a Kubernetes API server: objects, field managers and immutable fields.

It supports Helm installations and upgrades: admission sets the default class of a claim, server-side apply removes
fields that their manager no longer applies, and immutable fields of claims and StatefulSets are refused. It has no
controllers, so no pods exist. `tests.deploy.cluster.serving` serves it over HTTP.

Kubernetes documentation: "Server-Side Apply", "StatefulSets", "Persistent Volumes", "Change the default StorageClass".
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

Key = tuple[str, str, str]
"""Resource (plural), namespace, name. Resource names are unique over the stand-in's groups."""

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"

FREE: Mapping[str, frozenset[str]] = {
    "statefulsets": frozenset(
        {
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        }
    ),
    "persistentvolumeclaims": frozenset({"resources", "volumeAttributesClassName"}),
}
"""Mutable fields of a spec; all others are immutable.

API server: ValidateStatefulSetUpdate, ValidatePersistentVolumeClaimUpdate.
"""


class RefusedError(Exception):
    """The API server's answer with a status of 400 or more."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass
class Stored:
    """An object, and the last applied fields of each manager."""

    content: Json
    applied: dict[str, Json] = field(default_factory=dict)
    scaled_by: str = ""
    """The manager that set the number of replicas after the last apply."""


class Objects:
    """All objects of a cluster. Not thread-safe."""

    def __init__(self) -> None:
        self._stored: dict[Key, Stored] = {}
        self._numbers = itertools.count(1)

    def get(self, key: Key) -> Json:
        """Return an object.

        Raises:
            RefusedError: the object does not exist.
        """
        if key not in self._stored:
            raise RefusedError(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self._stored[key].content

    def all(self, resource: str, namespace: str = "") -> list[Json]:
        """List the objects of a resource; of all namespaces by default."""
        return [
            stored.content
            for key, stored in self._stored.items()
            if key[0] == resource and namespace in ("", key[1])
        ]

    def create(self, key: Key, content: Json) -> Json:
        """Create an object.

        Raises:
            RefusedError: the object exists.
        """
        if key in self._stored:
            raise RefusedError(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
        content = self._admitted(key, copy.deepcopy(content))
        content["metadata"] |= {
            "uid": f"uid-{next(self._numbers)}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        self._stored[key] = Stored(content)
        return self._kept(key, content)

    def replace(self, key: Key, content: Json) -> Json:
        """Replace an object.

        Raises:
            RefusedError: the object does not exist, or an immutable field differs.
        """
        self._check(key, self.get(key), content)
        return self._kept(key, content)

    def scale(self, key: Key, replicas: int, manager: str) -> None:
        """Set the number of replicas, as `kubectl scale` and the controller do."""
        content = self.merge(key, {"spec": {"replicas": replicas}})
        self._stored[key].scaled_by = manager
        content["metadata"]["managedFields"] = [
            {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}},
            {
                "manager": manager,
                "operation": "Update",
                "subresource": "scale",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            },
        ]

    def apply(self, key: Key, manager: str, content: Json, *, force: bool = False) -> Json:
        """Apply server-side: remove fields that the manager applied before but not now.

        Raises:
            RefusedError: an immutable field differs, or another manager has set the replicas.
        """
        if key not in self._stored:
            created = self.create(key, content)
            self._stored[key].applied[manager] = copy.deepcopy(content)
            return created
        stored = self._stored[key]
        named = content.get("spec", {}).get("replicas")
        is_other = stored.scaled_by and named is not None and stored.content["spec"]["replicas"] != named
        if is_other and not force:
            message = f'conflict with "{stored.scaled_by}" with subresource "scale": .spec.replicas'
            raise RefusedError(409, "Conflict", f"Apply failed with 1 conflict: {message}")
        before = stored.applied.get(manager, {})
        after = _merged(_without(copy.deepcopy(stored.content), before, content), content)
        if is_other:
            stored.scaled_by = ""
            after["metadata"].pop("managedFields", None)
        changed = self.replace(key, after)
        stored.applied[manager] = copy.deepcopy(content)
        return changed

    def merge(self, key: Key, change: Json) -> Json:
        """Apply a JSON merge patch (RFC 7386).

        Raises:
            RefusedError: the object does not exist, or an immutable field would differ.
        """
        return self.replace(key, _patched(copy.deepcopy(self.get(key)), change))

    def delete(self, key: Key) -> Json:
        """Delete an object.

        Raises:
            RefusedError: the object does not exist.
        """
        content = self.get(key)
        del self._stored[key]
        return content

    def _kept(self, key: Key, content: Json) -> Json:
        content["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._stored[key].content = content
        return content

    def _admitted(self, key: Key, content: Json) -> Json:
        if key[0] == "persistentvolumeclaims" and "storageClassName" not in content["spec"]:
            for one in self.all("storageclasses"):
                if one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true":
                    content["spec"]["storageClassName"] = one["metadata"]["name"]
        return content

    def _check(self, key: Key, before: Json, after: Json) -> None:
        resource, _, name = key
        if resource == "deployments" and before["spec"]["selector"] != after["spec"]["selector"]:
            raise _invalid(after, name, "spec.selector: Invalid value: field is immutable")
        if resource not in FREE:
            return
        fixed = [
            {field: value for field, value in one["spec"].items() if field not in FREE[resource]}
            for one in (before, after)
        ]
        if fixed[0] != fixed[1]:
            free = ", ".join(sorted(FREE[resource]))
            raise _invalid(after, name, f"spec: Forbidden: updates to fields other than {free} are forbidden")


def _invalid(content: Json, name: str, why: str) -> RefusedError:
    return RefusedError(422, "Invalid", f'{content["kind"]} "{name}" is invalid: {why}')


def _without(live: Json, before: Json, after: Json) -> Json:
    """Return `live` without the fields that are in `before` but not in `after`."""
    for name, value in before.items():
        if name not in after:
            live.pop(name, None)
        elif isinstance(value, dict) and isinstance(after[name], dict) and isinstance(live.get(name), dict):
            _without(live[name], value, after[name])
    return live


def _merged(live: Json, change: Json) -> Json:
    """Merge mappings by field; replace lists."""
    for name, value in change.items():
        mine = live.get(name)
        live[name] = (
            _merged(mine, value)
            if isinstance(mine, dict) and isinstance(value, dict)
            else copy.deepcopy(value)
        )
    return live


def _patched(live: Json, change: Json) -> Json:
    for name, value in change.items():
        if value is None:
            live.pop(name, None)
        elif isinstance(value, dict):
            mine = live.get(name)
            live[name] = _patched(mine if isinstance(mine, dict) else {}, value)
        else:
            live[name] = value
    return live

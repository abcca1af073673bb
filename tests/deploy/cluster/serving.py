"""Serve the stand-in cluster over HTTP: discovery, objects and server-side apply, as Helm uses them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.deploy.cluster import protobuf
from tests.deploy.cluster.objects import Json, Key, Objects, RefusedError
from tests.http_server import HttpServer

VERSION = {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}

KINDS: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "Namespace": ("namespaces", False),
        "Node": ("nodes", False),
        "Pod": ("pods", True),
        "Secret": ("secrets", True),
        "ConfigMap": ("configmaps", True),
        "Service": ("services", True),
        "ServiceAccount": ("serviceaccounts", True),
        "PersistentVolumeClaim": ("persistentvolumeclaims", True),
    },
    "apps/v1": {"Deployment": ("deployments", True), "StatefulSet": ("statefulsets", True)},
    "networking.k8s.io/v1": {"NetworkPolicy": ("networkpolicies", True), "Ingress": ("ingresses", True)},
    "policy/v1": {"PodDisruptionBudget": ("poddisruptionbudgets", True)},
    "rbac.authorization.k8s.io/v1": {"Role": ("roles", True), "RoleBinding": ("rolebindings", True)},
    "scheduling.k8s.io/v1": {"PriorityClass": ("priorityclasses", False)},
    "storage.k8s.io/v1": {"StorageClass": ("storageclasses", False)},
}
"""Group and version -> kind -> resource, and True if it is namespaced."""

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@contextmanager
def serving(objects: Objects) -> Iterator[str]:
    """Serve for the duration of the block; yield the server's address."""

    class Handler(_Handler):
        pass

    Handler.objects = objects
    server = HttpServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """A connection's handler."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: Objects
    lock = threading.Lock()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        """Handle all methods (``do_GET`` and so on) by one function."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        try:
            with self.lock:
                status, content = 201 if self.command == "POST" else 200, self._answer()
        except RefusedError as error:
            status = error.code
            content = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": error.code,
                "reason": error.reason,
                "message": str(error),
            }
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> Json:
        address = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        if (discovery := _discovery(address.path)) is not None:
            return discovery
        group, kind, key = _place(address.path)
        body = self._body()
        if self.command == "GET" and not key[2]:
            return self._list(group, kind, key, query.get("labelSelector", ""))
        if self.command == "POST":
            return self.objects.create((*key[:2], body["metadata"]["name"]), body)
        if self.command == "PUT":
            return self.objects.replace(key, body)
        if self.command == "DELETE":
            return self.objects.delete(key)
        if self.command == "PATCH":
            if "apply" in self.headers["Content-Type"]:
                force = query.get("force") == "true"
                return self.objects.apply(key, query["fieldManager"], body, force=force)
            return self.objects.merge(key, body)
        return self.objects.get(key)

    def _body(self) -> Any:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if content.startswith(protobuf.PREFIX):
            # Helm sends its releases as Protobuf. The options of a deletion are ignored.
            return protobuf.secret(content) if self.command in ("POST", "PUT") else {}
        return yaml.load(content, Loader=yaml.CSafeLoader) or {}

    def _list(self, group: str, kind: str, key: Key, selector: str) -> Json:
        labels = dict(part.split("=", 1) for part in selector.split(",") if "=" in part)
        found = [
            one
            for one in self.objects.all(*key[:2])
            if labels.items() <= one["metadata"].get("labels", {}).items()
        ]
        return {
            "apiVersion": group,
            "kind": f"{kind}List",
            "metadata": {"resourceVersion": "1"},
            "items": found,
        }


def _discovery(path: str) -> Json | None:
    parts = path.strip("/").split("/")
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [
            {"name": name.split("/")[0], "versions": [version], "preferredVersion": version}
            for name in KINDS
            if "/" in name
            for version in [{"groupVersion": name, "version": name.split("/")[1]}]
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    name = "/".join(parts[1:])
    if name not in KINDS:
        return None
    resources = [
        {
            "name": resource,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": is_namespaced,
            "verbs": _VERBS,
        }
        for kind, (resource, is_namespaced) in KINDS[name].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}


def _place(path: str) -> tuple[str, str, Key]:
    """Parse a path into group and version, kind, and key; without a name the key means a collection."""
    parts = path.strip("/").split("/")
    group, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    for kind, (resource, _) in KINDS.get(group, {}).items():
        if rest[:1] == [resource]:
            return group, kind, (resource, namespace, rest[1] if len(rest) > 1 else "")
    raise RefusedError(404, "NotFound", f"the server could not find the requested resource: {path}")

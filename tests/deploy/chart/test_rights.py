"""Least privilege for the Kubernetes API and secrets, and the objects that uninstalling keeps."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controller.kubernetes.access import RESIZE_RULES, RULES
from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import Object, component, render, render_with


def _named(rules: Sequence[Mapping[str, Any]], worker_set: str) -> list[Any]:
    text = json.dumps(list(rules)).replace("$CEREBRO_WORKER_SET", worker_set)
    return sorted(json.loads(text), key=str)


@pytest.mark.parametrize("values", VALUES)
def test_the_controller_has_exactly_the_rules_of_its_adapter(values: str) -> None:
    """The one Role has exactly the rules that controller.kubernetes declares, for this release's worker set."""
    rendered = render(values)
    (role,) = rendered.of("Role")
    granted = (*RULES, *(RESIZE_RULES if VALUES[values].get("autoscaler", {}).get("resize") else ()))
    assert sorted(role["rules"], key=str) == _named(granted, "cerebro-worker")
    (container,) = rendered.pod("controller")["spec"]["containers"]
    assert {"name": "CEREBRO_WORKER_SET", "value": "cerebro-worker"} in container["env"]


@pytest.mark.parametrize("values", VALUES)
def test_nothing_is_granted_in_the_whole_cluster(values: str) -> None:
    kinds = {one["kind"] for one in render(values).objects}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("values", VALUES)
def test_only_the_controller_mounts_an_api_token(values: str) -> None:
    """One account per component without automounted token; only the controller's pod mounts its token."""
    rendered = render(values)
    accounts = {name: pod["spec"]["serviceAccountName"] for name, pod in rendered.pods()}
    assert len(set(accounts.values())) == len(accounts)
    assert all(account["automountServiceAccountToken"] is False for account in rendered.of("ServiceAccount"))
    assert {account["metadata"]["name"] for account in rendered.of("ServiceAccount")} == set(
        accounts.values()
    )
    mounting = {name for name, pod in rendered.pods() if pod["spec"]["automountServiceAccountToken"]}
    assert mounting == {"controller"}


def test_object_store_credentials_reach_services_that_read_objects() -> None:
    """Annotated accounts and the credentials' Secret: controller, workers and notebook. Redis' password: kvs-api."""
    rendered = render("existing")
    readers = {"controller", "notebook", "worker"}
    annotated = {
        component(one) for one in rendered.of("ServiceAccount") if one["metadata"].get("annotations")
    }
    assert annotated == readers
    services = {name.split("/")[0] for name, container in rendered.containers() if "envFrom" in container}
    assert services == readers
    by_key: dict[str, set[str]] = {}
    for name, container in rendered.containers():
        for entry in container.get("env", ()):
            key = entry.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
            by_key.setdefault(key, set()).add(name.split("/")[0])
    assert by_key["redis-password"] == {"redis", "kvs-api"}
    assert by_key["token"] == {"kvs-api", "controller", "dispatcher", "notebook", "worker", "test"}


OWN = {"existingSecret": "reading"}
ROLE = {"serviceAccountAnnotations": {"role": "reading"}}
COMMON = {"existingSecret": "common", "serviceAccountAnnotations": {"role": "common"}}


@pytest.mark.parametrize(
    ("common", "page_secret", "secret", "role"),
    [
        (COMMON, {}, "common", "common"),
        (COMMON, OWN, "reading", None),
        (COMMON, ROLE, None, "reading"),
        ({}, OWN | ROLE, "reading", "reading"),
    ],
)
def test_the_page_gets_its_own_or_the_common_credentials(
    common: Object, page_secret: Object, secret: str | None, role: str | None
) -> None:
    """The page's credentials replace the common ones, since they should grant less."""
    rendered = render_with(
        {"objectStore": common, "dispatcher": {"objectStore": page_secret | {"enabled": True}}}
    )
    account = rendered.get("ServiceAccount", "dispatcher")["metadata"].get("annotations", {})
    (container,) = rendered.pod("dispatcher")["spec"]["containers"]
    assert account.get("role") == role
    assert container.get("envFrom") == ([{"secretRef": {"name": secret}}] if secret else None)


@pytest.mark.parametrize("values", VALUES)
def test_secret_values_are_only_in_secrets(values: str) -> None:
    """No other object contains the Secret's values, plain or encoded, or similar text."""
    rendered = render(values)
    others = json.dumps([one for one in rendered.objects if one["kind"] != "Secret"])
    # Settings are in the pods; the only ConfigMap is a dashboard.
    assert all(one["metadata"]["name"] == "cerebro-dashboard" for one in rendered.of("ConfigMap"))
    for secret in rendered.of("Secret"):
        for text in secret["data"].values():
            assert text not in others
            assert base64.b64decode(text).decode() not in others
    for name, container in rendered.containers():
        for entry in container.get("env", ()):
            is_secret = re.search(r"TOKEN|PASSWORD|SECRET|_KEY", entry["name"])
            assert not is_secret or "secretKeyRef" in entry["valueFrom"], (name, entry["name"])
            assert not re.search(r"://[^$@]*:[^$@]+@", entry.get("value", "")), (name, entry["name"])


def test_secrets_are_long_url_safe_and_different() -> None:
    """256 random bits each, in characters that need no quoting in a URL; each rendering has new ones."""
    texts = [base64.b64decode(text).decode() for text in _generated("defaults").values()]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", text) for text in texts)
    assert len(set(texts)) == 2


def _generated(values: str) -> Mapping[str, str]:
    (secret,) = render(values).of("Secret")
    data: Mapping[str, str] = secret["data"]
    return data


@pytest.mark.parametrize("values", VALUES)
def test_uninstalling_keeps_secret_and_claims(values: str) -> None:
    """All claims and the Secret, and no other object. Claims of StatefulSets are always kept."""
    rendered = render(values)

    def is_kept(one: Object) -> bool:
        annotations = one["metadata"].get("annotations", {})
        return bool(annotations.get("helm.sh/resource-policy") == "keep")

    for one in rendered.objects:
        assert is_kept(one) == (one["kind"] in ("PersistentVolumeClaim", "Secret")), one["metadata"]["name"]
    for one in rendered.of("StatefulSet"):
        assert one["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"

"""Two renderings differ only as intended."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import (
    CHART,
    NAMESPACE,
    RELEASE,
    Rendered,
    parse,
    render,
    render_each,
    render_with,
    run,
    template,
    texts,
)


def _without_secrets(text: str) -> str:
    text = re.sub(r'(checksum/auth: )"[0-9a-f]{64}"', r"\1", text)
    return re.sub(r'(token|redis-password): "[A-Za-z0-9+/=]+"', r"\1", text)


def _without_empty_lines_at_ends(text: str) -> str:
    return re.sub(r"\s*\n(---\n|\Z)", r"\n\1", text)


@pytest.fixture(scope="module")
def together() -> Mapping[str, str]:
    """Render all of `VALUES` in one run of Helm."""
    return texts(VALUES)


@pytest.mark.parametrize("values", VALUES)
def test_two_renderings_differ_in_generated_secrets_only(values: str, together: Mapping[str, str]) -> None:
    """Nothing else differs, and with the user's own Secret nothing at all.

    One rendering is part of a batch, as in most tests, the other a separate call, as for a user.
    """
    first = together[values]
    second = _without_empty_lines_at_ends(template(CHART, json.dumps(VALUES[values])))
    assert _without_secrets(first) == _without_secrets(second)
    assert (first == second) is (values == "existing")


KEPT = {"auth": {"existingSecret": "ours"}}
"""A fixed Secret, so renderings are comparable."""

CHANGES = {
    "controller: {leaseS: 20}": {"controller", "worker"},
    "controller: {openRuns: 1}": {"controller"},
    "autoscaler: {mode: act, mostWorkers: 8}": {"controller"},
    "autoscaler: {mode: act, minWorkers: 0, idleS: 600}": {"controller"},
    "autoscaler: {resize: true, maxMemory: 64Gi}": {"controller"},
    "worker: {graceS: 30}": {"worker"},
    "worker: {savepointS: 30}": {"worker"},
    "worker: {taskLogMiB: 8}": {"worker"},
    "worker: {frozenCacheMiB: 8}": {"worker"},
    "worker: {failureRules: [{name: x, pattern: y}]}": {"worker"},
    "worker: {replicas: 3}": {"controller"},
    "worker: {resources: {etl: {limits: {memory: 3Gi}}}}": {"worker"},
    "kvsApi: {threads: 100}": {"kvs-api"},
    "redis: {resources: {limits: {memory: 1Gi}}}": {"redis"},
    "dispatcher: {publicHosts: [a.org]}": {"dispatcher"},
    "dispatcher: {service: {type: NodePort}}": set[str](),
    "notebook: {extraEnv: [{name: A, value: b}]}": {"notebook"},
    "notebook: {enabled: false}": {"notebook", "dispatcher"},
    "tensorboard: {reloadIntervalS: 5}": {"tensorboard"},
    "objectStore: {region: eu-west-1}": {"controller", "worker", "notebook"},
    "objectStore: {existingSecret: bucket}": {"controller", "worker", "notebook"},
    "dispatcher: {objectStore: {enabled: true, existingSecret: bucket}}": {"dispatcher"},
    "{objectStore: {existingSecret: bucket}, dispatcher: {objectStore: {enabled: true}}}": {
        "controller",
        "worker",
        "notebook",
        "dispatcher",
    },
    "images: {worker: {tag: '2'}}": {"worker"},
    "images: {notebook: {tag: '2'}}": {"notebook", "tensorboard", "test"},
    "images: {control: {tag: '2'}}": {"redis", "kvs-api", "controller", "dispatcher"},
    "networkPolicy: {enabled: false}": set[str](),
    "logs: {format: text}": {"kvs-api", "controller", "dispatcher", "worker"},
    "monitoring: {serviceMonitor: {enabled: true}, rules: {enabled: true}}": set[str](),
    "storage: {metrics: {size: 50Gi}}": set[str](),
}
"""Values -> components whose pod templates change."""


def _pods(rendered: Rendered) -> dict[str, Any]:
    return {
        name: (pod["metadata"].get("annotations"), pod["metadata"]["labels"], pod["spec"])
        for name, pod in rendered.pods()
    }


@pytest.mark.parametrize(("values", "touched"), CHANGES.items())
def test_a_change_restarts_only_affected_pods(values: str, touched: set[str]) -> None:
    """Kubernetes restarts pods with a changed template, so only affected components may change."""
    before = _pods(render_with(KEPT))
    after = _pods(render_each({change: {**KEPT, **yaml.safe_load(change)} for change in CHANGES})[values])
    assert {name for name in before | after if before.get(name) != after.get(name)} == touched


@pytest.mark.parametrize("values", VALUES)
def test_selectors_and_templates_of_claims_are_free_of_versions(values: str) -> None:
    """These fields are immutable: a version or a user's label in them would break the next upgrade."""
    for one in render(values).objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            fixed = [one["spec"]["selector"]["matchLabels"]]
            fixed += [claim["metadata"]["labels"] for claim in one["spec"].get("volumeClaimTemplates", ())]
            for labels in fixed:
                assert labels.keys() == {
                    "app.kubernetes.io/name",
                    "app.kubernetes.io/instance",
                    "app.kubernetes.io/component",
                }


def test_another_release_shares_no_name() -> None:
    """Two releases in one namespace share no object name, and long names stay within Kubernetes' limit."""
    names = []
    for release in (RELEASE, "a-rather-long-name-for-a-release-of-a-team-it-is"):
        text = run("template", release, str(CHART), "--namespace", NAMESPACE)
        names.append({(one["kind"], one["metadata"]["name"]) for one in parse(text)})
    assert not names[0] & names[1]
    # The limit of 63, less "-" and the hash of ten characters that Kubernetes adds to pod names of a StatefulSet.
    assert all(len(name) <= 52 for kind, name in names[1] if kind in ("StatefulSet", "Deployment", "Service"))

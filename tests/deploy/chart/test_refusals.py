"""The chart refuses contradictory values with the field's name and a fix."""

import re
from collections.abc import Mapping

import pytest
import yaml

from tests.deploy.chart.rendering import refusals_of_checks, refusals_of_schema

CONTRADICTIONS = {
    "autoscaler.mode is act, and worker.shards.whenScaled is Delete": (
        "{autoscaler: {mode: act}, worker: {shards: {whenScaled: Delete}}}"
    ),
    "autoscaler.minWorkers is 3 and autoscaler.mostWorkers is 2": "autoscaler: {mode: act, minWorkers: 3, "
    "mostWorkers: 2}",
    "autoscaler.resize is true and autoscaler.maxMemory is empty": "autoscaler: {resize: true}",
    "autoscaler.maxMemory is 64Gi and autoscaler.resize is false": "autoscaler: {maxMemory: 64Gi}",
    "worker.gpus is 2 and images.worker.cuda is false": "worker: {gpus: 2}",
    "worker.devices is 3 and worker.gpus is 2": "{worker: {devices: 3, gpus: 2}, images: {worker: {cuda: true}}}",
    "worker.devices is 2 and each worker has 1 thread(s)": "worker: {devices: 2}",
    "worker.devices is 5 and each worker has 4 thread(s)": "worker: {devices: 5, cores: 4}",
    "worker.resources.etl.limits names nvidia.com/gpu": 'worker: {resources: {etl: {limits: {nvidia.com/gpu: "1"}}}}',
    "redis.external.existingSecret is empty": "redis: {external: {enabled: true}}",
    "redis.external.enabled is false": "redis: {external: {existingSecret: ours}}",
    "kvsApi.podDisruptionBudget.minAvailable is 1 of kvsApi.replicas=1": "kvsApi: {replicas: 1}",
    "kvsApi.podDisruptionBudget.minAvailable is 3": "kvsApi: {podDisruptionBudget: {minAvailable: 3}}",
    "dispatcher.links.notebook is set and notebook.enabled is false": (
        "{notebook: {enabled: false}, dispatcher: {links: {notebook: 'http://n'}}}"
    ),
    "dispatcher.links.tensorboard is set and tensorboard.enabled is false": (
        "{tensorboard: {enabled: false}, dispatcher: {links: {tensorboard: 'http://t'}}}"
    ),
    "notebook.ingress.enabled is true and notebook.enabled is false": (
        "notebook: {enabled: false, ingress: {enabled: true, host: n.example.org}}"
    ),
    "export.mlflow.enabled is true and export.mlflow.url is empty": "export: {mlflow: {enabled: true}}",
    "dispatcher.ingress.host is empty": "dispatcher: {ingress: {enabled: true}}",
    "notebook.ingress.host is dispatcher.ingress.host (a.org)": (
        "{notebook: {ingress: {enabled: true, host: a.org}}, dispatcher: {ingress: {enabled: true, host: a.org}}}"
    ),
    "a bare header is not believed there": (
        "{auth: {mode: users}, notebook: {enabled: false}, "
        "dispatcher: {auth: {header: X-User, proxies: [10.0.0.1]}}}"
    ),
    "notebook.enabled is true and auth.mode is users": "auth: {mode: users}",
    "set auth.mode=users": "auth: {oidc: {issuer: 'https://i', audience: c, groups: {a: {role: admin}}}}",
    "auth.oidc.issuer is set without audience or groups": (
        "{auth: {mode: users, oidc: {issuer: 'https://i', audience: c}}, notebook: {enabled: false}}"
    ),
    "dispatcher.auth.proxies is []": "dispatcher: {auth: {header: X-User}}",
    'dispatcher.auth.header is ""': "dispatcher: {auth: {proxies: [10.0.0.1]}}",
    "podSecurityContext.runAsUser is null and storage.handOver is always": (
        "{podSecurityContext: {runAsUser: null}, storage: {handOver: always}}"
    ),
    "dispatcher.objectStore names credentials": "dispatcher: {objectStore: {existingSecret: ours}}",
    "nothing says with which credentials": "dispatcher: {objectStore: {enabled: true}}",
    "dispatcher.service.nodePort is 30000 and dispatcher.service.type is ClusterIP": (
        "dispatcher: {service: {nodePort: 30000}}"
    ),
}
"""Message of the chart's own check -> values."""

MISTAKES = {
    "podSecurityContext.runAsUser": "podSecurityContext: {runAsUser: 0}",
    "auth.mode": "auth: {mode: oidc}",
    "auth.oidc.groups": "auth: {oidc: {groups: {a: {role: worker}}}}",
    "autoscaler.minWorkers": "autoscaler: {minWorkers: -1}",
    "autoscaler.idleS": "autoscaler: {idleS: 1}",
    "autoscaler.maxMemory": "autoscaler: {resize: true, maxMemory: lots}",
    "worker.replicas": "worker: {replicas: 0}",
    "worker.gpus": "worker: {gpus: -1}",
    "worker.cores": "worker: {cores: all}",
    "worker.devices": "worker: {devices: all}",
    "kvsApi.replicas": "kvsApi: {replicas: 0}",
    "controller.replicas": "controller: {replicas: 0}",
    "'?replica'? (is )?not allowed": "worker: {replica: 3}",
    "'?gpu'? (is )?not allowed": "gpu: 1",
    "storage.shared.accessMode": "storage: {shared: {accessMode: ReadWriteAll}}",
    "storage.metrics.size": "storage: {metrics: {size: 0Gi}}",
    "worker.shards.whenScaled": "worker: {shards: {whenScaled: Keep}}",
    "worker.resources.worker.limits.memory": "worker: {resources: {worker: {limits: {memory: lots}}}}",
    "images.worker.digest": "images: {worker: {digest: latest}}",
    "notebook.folder": "notebook: {folder: /home}",
    "controller.extraEnv.0.name": "controller: {extraEnv: [{name: CEREBRO_LEASE_S, value: '1'}]}",
    "networkPolicy.ingress.notebook.0": "networkPolicy: {ingress: {notebook: [{cidr: 10.0.0.0/8}]}}",
    "dispatcher.service.type": "dispatcher: {service: {type: nodeport}}",
    "objectStore.endpoint": "objectStore: {endpoint: 'minio:9000'}",
    "objectStore.endpoint.*key:secret": "objectStore: {endpoint: 'http://key:secret@minio:9000'}",
    "dispatcher.objectStore.enabled": "dispatcher: {objectStore: {enabled: 'yes'}}",
    "dispatcher.objectStore.existingSecret": "dispatcher: {objectStore: {existingSecret: Our_Secret}}",
    "'?endpoint'? (is )?not allowed": "dispatcher: {objectStore: {endpoint: 'http://minio:9000'}}",
    "networkPolicy.egress.objectStore.port": "networkPolicy: {egress: {objectStore: {port: 70000}}}",
    "logs.format": "logs: {format: xml}",
    "monitoring.rules.freeRatio": "monitoring: {rules: {freeRatio: 10}}",
}
"""Field -> values. Helm 3 and 4 write paths with different dots."""


@pytest.fixture(scope="module")
def contradicted() -> Mapping[str, str]:
    """Map each message of `CONTRADICTIONS` to the actual error."""
    return refusals_of_checks({message: yaml.safe_load(values) for message, values in CONTRADICTIONS.items()})


@pytest.fixture(scope="module")
def mistaken() -> Mapping[str, str]:
    """Map each field of `MISTAKES` to the actual error."""
    return refusals_of_schema({field: yaml.safe_load(values) for field, values in MISTAKES.items()})


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_contradictions_are_refused(message: str, contradicted: Mapping[str, str]) -> None:
    """The chart's own check names the conflicting fields."""
    assert message in contradicted[message]


@pytest.mark.parametrize("field", MISTAKES)
def test_mistakes_are_refused(field: str, mistaken: Mapping[str, str]) -> None:
    """The schema names the field."""
    assert re.search(field, mistaken[field].replace("/", "."))

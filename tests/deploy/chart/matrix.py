"""The sets of values that most chart tests render."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    "users": {
        "auth": {
            "mode": "users",
            "oidc": {
                "issuer": "https://login.example.org/realms/lab",
                "audience": "cerebro",
                "jwksUrl": "https://login.example.org:8443/keys",
                "groups": {"researchers": {"role": "member", "projects": ["vision"]}},
            },
        },
        "notebook": {"enabled": False},
    },
    "export": {
        "auth": {"mode": "users"},
        "notebook": {"enabled": False},
        "export": {
            "mlflow": {
                "enabled": True,
                "url": "http://mlflow.mlflow:5000",
                "experiments": ["digits"],
                "registry": True,
                "existingSecret": "our-mlflow",
            }
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
            "taskLogMiB": 0,
            "frozenCacheMiB": 0,
            "sandbox": "on",
            "sandboxWritable": ["/data/cache", "/opt/models"],
            "failureRules": [{"name": 'say "x"', "pattern": 'a\\s+"b"', "action": "quarantine"}],
            "deviceMemory": "1.5GiB",
            "gangs": {"enabled": True, "port": 7191},
            "shards": {"size": "100Gi", "className": "gp3", "whenScaled": "Delete"},
            "extraEnv": [{"name": "HF_HOME", "value": "/volumes/shared/hf"}],
        },
        "kvsApi": {"replicas": 4, "podDisruptionBudget": {"minAvailable": 3}},
        "controller": {"replicas": 2, "leaseS": 15, "openRuns": 3},
        "autoscaler": {
            "mode": "act",
            "mostWorkers": 90,
            "minWorkers": 60,
            "resize": True,
            "maxMemory": "96Gi",
        },
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
            "links": {
                "grafana": "https://grafana.example.org/d/cerebro",
                "docs": "https://docs.example.org/web-page",
            },
            "auth": {"header": "X-Forwarded-User", "proxies": ["10.0.0.0/8", "192.168.1.7"]},
        },
    },
}
"""The matrix: every switch in both positions at least once."""

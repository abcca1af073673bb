"""How a pod reaches its API server, and what it must be allowed to do there.

Kubernetes documentation: "Accessing the Kubernetes API from a Pod", "Configure Service Accounts for Pods",
"Using RBAC Authorization" (section "Referring to resources": `list` and `watch` of one object by name need a field
selector on ``metadata.name``, which `controller.kubernetes.orchestrator` sends).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cerebro.errors import ClusterError

_MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")

RULES: Final = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
    {
        "apiGroups": ["apps"],
        "resources": ["statefulsets"],
        "resourceNames": ["$CEREBRO_WORKER_SET"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": ["apps"],
        "resources": ["statefulsets/scale"],
        "resourceNames": ["$CEREBRO_WORKER_SET"],
        "verbs": ["patch"],
    },
)
"""The rules of the controller's Role: every request this package makes needs one of them, and nothing else is asked."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """An API server, and the service account that speaks to it.

    Attributes:
        server: base URL.
        namespace: of the worker set.
        token_file: bearer token; read for every request, because the kubelet replaces it before it expires. `None`: no
            token is sent.
        ca_file: certificate that the server's is signed with; `None`: those the machine trusts.
    """

    server: str
    namespace: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(
        cls, environment: Mapping[str, str], namespace: str = "", mounted: Path = _MOUNTED
    ) -> Access:
        """As the kubelet tells every pod: two variables and a mounted folder.

        Args:
            namespace: empty: the pod's own.

        Raises:
            ClusterError: this is no pod, or its service account is not mounted.
        """
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise ClusterError(
                "CEREBRO_WORKER_SET is set but KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not: "
                "this is no pod; unset CEREBRO_WORKER_SET outside a Kubernetes cluster"
            )
        for name in ("token", "ca.crt", *(() if namespace else ("namespace",))):
            if not (mounted / name).is_file():
                raise ClusterError(
                    f"{mounted / name} is missing: the controller's pod needs its service account's token, "
                    "set automountServiceAccountToken to true in its spec"
                )
        return cls(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            namespace=namespace or (mounted / "namespace").read_text().strip(),
            token_file=mounted / "token",
            ca_file=mounted / "ca.crt",
        )

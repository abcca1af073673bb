"""Access to a pod's API server: address, permissions, and the meaning of errors. Makes no request itself.

`controller.__main__` calls `in_cluster`; `orchestrator` and `watching` translate errors. Kubernetes documentation:
"Accessing the Kubernetes API from a Pod", "Using RBAC Authorization" (section "Referring to resources": `list` and
`watch` of one object by name need a field selector on ``metadata.name``, which `orchestrator` sends).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubernetes.client import ApiException, Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader

from cerebro.errors import CerebroError, ClusterError, RetryableError

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
"""Rules of the controller's Role: exactly the requests of this package. The tests compare them with the chart's."""

RESIZE_RULES: Final = ({"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},)
"""Further rules for raising the memory of workers (``autoscaler.resize``).

They cover all pods of the namespace, because the names of future pods are unknown.
"""


def in_cluster(
    environment: Mapping[str, str], namespace: str = "", mounted: Path = _MOUNTED
) -> tuple[Configuration, str]:
    """Return the configuration for the pod's API server, and the namespace.

    The token is read again every minute: the kubelet replaces it long before it expires.

    Args:
        namespace: the namespace; "" for the pod's own.

    Raises:
        ClusterError: this is no pod, or its service account is not mounted.
    """
    # The callers retry, because they know the meaning of 410 and when to stop. No proxy from the environment,
    # which may be meant for object stores.
    configuration = Configuration(retries=False, proxy="", connection_pool_maxsize=4)
    loader = InClusterConfigLoader(str(mounted / "token"), str(mounted / "ca.crt"), environ=environment)
    try:
        loader.load_and_set(configuration)
        return configuration, namespace or (mounted / "namespace").read_text().strip()
    except (ConfigException, OSError) as error:
        raise ClusterError(
            f"CEREBRO_WORKER_SET is set, but the API server cannot be asked: {error} Outside a Kubernetes cluster "
            "unset CEREBRO_WORKER_SET; in one, set automountServiceAccountToken to true in the controller's pod"
        ) from error


def translated(error: Exception) -> CerebroError:
    """Return the client's error as a retryable or permanent error with the server's message."""
    if isinstance(error, CerebroError):
        return error
    if not isinstance(error, ApiException):
        return RetryableError(f"does not answer as it should ({type(error).__name__}: {error})")
    said = f"answers HTTP {error.status}: {_message(error)}"
    is_refused = 400 <= (error.status or 0) < 500 and error.status not in _PASSING
    return ClusterError(said + _CURES.get(error.status, "")) if is_refused else RetryableError(said)


def resize_refused(error: Exception) -> CerebroError:
    """Return the same for an error from raising a pod's memory."""
    if isinstance(error, ApiException) and error.status in _NO_RESIZE:
        said = f"answers HTTP {error.status}: {_message(error)}"
        return ClusterError(said + _NO_RESIZE[error.status])
    return translated(error)


def _message(error: ApiException) -> str:
    """Return the message of an API server's `Status`; a proxy may answer with anything."""
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, LookupError, TypeError):
        return str(error.body or error.reason)[:200]


_PASSING = (409, 410, 429)
"""Refusals that a retry may change: a conflict, an outdated version, too many requests."""

_CURES: Mapping[int, str] = {
    401: "; the controller's service account token is not valid (deleted, expired, of another cluster)",
    403: "; the controller's Role lacks this verb: `helm upgrade` restores the chart's Role",
    404: "; the name in CEREBRO_WORKER_SET or CEREBRO_NAMESPACE is wrong, or the StatefulSet was deleted",
}
"""Remedies for answers that a retry does not change."""

_NO_RESIZE: Mapping[int, str] = {
    403: "; the controller's Role lacks pods/resize: `helm upgrade` with autoscaler.resize=true grants it",
    404: "; the pod is gone, or the server offers no pods/resize, as those before Kubernetes 1.33",
    405: "; the server offers no pods/resize, as those before Kubernetes 1.33",
}
"""The same for raising a pod's memory."""

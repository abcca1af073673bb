"""How a pod reaches its API server, what it must be allowed to do there, and what the server's errors mean.

Kubernetes documentation: "Accessing the Kubernetes API from a Pod", "Using RBAC Authorization" (section "Referring to
resources": `list` and `watch` of one object by name need a field selector on ``metadata.name``, which
`controller.kubernetes.orchestrator` sends).
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
"""The rules of the controller's Role: every request this package makes needs one of them, and nothing else is asked."""

RESIZE_RULES: Final = ({"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},)
"""Further ones, where the memory of workers may be raised (``autoscaler.resize``). How many workers there will be is
not
known beforehand, so no rule can name their pods: it holds for all pods of the namespace."""


def in_cluster(
    environment: Mapping[str, str], namespace: str = "", mounted: Path = _MOUNTED
) -> tuple[Configuration, str]:
    """The API server and the service account that the kubelet tells every pod of, and the namespace.

    The token is read anew every minute: the kubelet replaces it long before it expires.

    Args:
        namespace: empty: the pod's own.

    Raises:
        ClusterError: this is no pod, or its service account is not mounted.
    """
    # No retries: they are the callers', who know what 410 means and when to give up. No proxy either, which the client
    # would take from the environment: object stores may need one, the pod's own API server does not.
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
    """What an error of the client says of the API server, as a sentence goes on: retryable or not, by type."""
    if isinstance(error, CerebroError):
        return error
    if not isinstance(error, ApiException):
        return RetryableError(f"does not answer as it should ({type(error).__name__}: {error})")
    said = f"answers HTTP {error.status}: {_message(error)}"
    is_refused = 400 <= (error.status or 0) < 500 and error.status not in _PASSING
    return ClusterError(said + _CURES.get(error.status, "")) if is_refused else RetryableError(said)


def resize_refused(error: Exception) -> CerebroError:
    """The same of an error that came when the memory of a pod was to be raised."""
    if isinstance(error, ApiException) and error.status in _NO_RESIZE:
        said = f"answers HTTP {error.status}: {_message(error)}"
        return ClusterError(said + _NO_RESIZE[error.status])
    return translated(error)


def _message(error: ApiException) -> str:
    """Of the `Status` object that an API server answers with. A proxy before it answers with anything."""
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, LookupError, TypeError):
        return str(error.body or error.reason)[:200]


_PASSING = (409, 410, 429)
"""Refusals that asking again may change: somebody else was faster, the version is too old, too many requests."""

_CURES: Mapping[int, str] = {
    401: "; the controller's service account token is not valid (deleted, expired, of another cluster)",
    403: "; the controller's Role lacks this verb: `helm upgrade` restores the chart's Role",
    404: "; the name in CEREBRO_WORKER_SET or CEREBRO_NAMESPACE is wrong, or the StatefulSet was deleted",
}
"""What to do about an answer that trying again does not change."""

_NO_RESIZE: Mapping[int, str] = {
    403: "; the controller's Role lacks pods/resize: `helm upgrade` with autoscaler.resize=true grants it",
    404: "; the pod is gone, or the server offers no pods/resize, as those before Kubernetes 1.33",
    405: "; the server offers no pods/resize, as those before Kubernetes 1.33",
}
"""The same, about raising the memory of a pod."""

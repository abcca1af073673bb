"""The controller's view of a Kubernetes cluster: the pods of one StatefulSet, and its size.

Only `controller.__main__` imports this package, and only if CEREBRO_WORKER_SET is set.
"""

from controller.kubernetes.access import in_cluster
from controller.kubernetes.orchestrator import KubernetesOrchestrator

__all__ = ["KubernetesOrchestrator", "in_cluster"]

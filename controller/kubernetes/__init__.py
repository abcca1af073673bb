"""The controller's view of a Kubernetes cluster: the pods of one StatefulSet, and its size."""

from controller.kubernetes.access import Access
from controller.kubernetes.orchestrator import KubernetesOrchestrator

__all__ = ["Access", "KubernetesOrchestrator"]

"""Number and state of workers: membership, autoscaler, cluster log.

`orchestrator` is the interface of a cluster manager. `controller.kubernetes` implements it.
"""

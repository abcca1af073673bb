"""Which workers there are and how many there should be: membership, autoscaler, cluster log.

`orchestrator` is the interface of a cluster manager. `controller.kubernetes` implements it.
"""

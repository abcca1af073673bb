"""Number and state of workers: membership, autoscaler, cluster log. `controller.loop` calls it.

`membership` is the facade for the loop. `orchestrator` is the interface of a cluster manager, which
`controller.kubernetes` implements.
"""

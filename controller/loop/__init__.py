"""The effects of the controller: leadership, reading logs, waking up, writing steps.

`loop` lets each experiment's core decide and writes its steps. The pure rules are in `controller.decisions`.
"""

"""The effects of the controller: leadership, log reading, wake-ups, writing steps.

`loop` lets each experiment's core decide and writes its steps. The pure rules are in `controller.decisions`.
"""

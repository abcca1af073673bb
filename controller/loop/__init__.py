"""The loop and its effects: leadership, admission, log reading, wake-ups, writing steps.

`loop.Controller` owns the services of this folder and calls them in a fixed order. The pure rules are in
`controller.decisions`.
"""

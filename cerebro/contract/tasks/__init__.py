"""Task bodies that the controller assigns, and the workers' results and failures.

A task's `key` identifies it within an experiment. A body is self-contained: besides it, a worker reads only
the user code that it names.
"""

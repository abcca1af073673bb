"""Train and evaluate models on a worker's partitions.

`handler.py` executes a task on one model in a worker's child process: it restores the checkpoint, calls the user's
`train`, `test` or `predict` on a partition and saves the next checkpoint. `savepoint_timing.py` decides when a
sub-epoch takes a savepoint, `rank_setup.py` joins the ranks of a parallel plan, `memory_fallback.py` repeats an
evaluation that runs out of memory, and `verification.py` compares a re-executed sub-epoch. The training code itself is
in `cerebro.worker.training`. Which model trains where is decided in `controller`.
"""

KINDS = ("train", "fused", "valid", "test", "predict", "verify")
"""Task kinds of `HANDLER`."""

HANDLER = "model_hopper.handler"
"""Module that the child process imports; this package stays cheap to import for the agent."""

"""Export an experiment's results to MLflow or Weights & Biases.

`projection` computes a page for each fit and each model, and the rows of its metrics, from the experiment's log alone.
`export_loop` reads the logs and hands new rows to an exporter, which writes a page as a run of the tracker. Each run
of a tracker stores the number of the last event it has, so an export can stop at any time and continue later. Exports
run in ``cerebro export``, by a user or as the chart's export pod (MLflow only): training does not need them, and no
image contains a tracker's package. Registered models go to MLflow's registry (`mlflow_registry`).
"""

from cerebro.exports.export_loop import Export
from cerebro.exports.projection import Page, PageKey, Projection, Row

__all__ = ["Export", "Page", "PageKey", "Projection", "Row"]

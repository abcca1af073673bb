"""The experiment file: a notebook's work, from data to predictions, in one YAML file (docs/experiment-file.md)."""

from __future__ import annotations

from cerebro.client.experiment_file.form import ExperimentFile, read

__all__ = ["ExperimentFile", "read"]

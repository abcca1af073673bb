"""Experiment files: ETL, fit, test and predictions in one YAML file (docs/experiment-file.md).

`schema.py` defines and parses the file, `calls.py` evaluates calls such as ``ASHA(eta=4)`` in it. `study.py` imports
the user's code and runs or dry-runs the file for `cerebro run`. `submission.py` converts a file into requests without
importing user code, for the web page.
"""

from __future__ import annotations

from cerebro.client.experiment_file.schema import read

__all__ = ["read"]

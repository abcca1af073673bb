"""Statistics of columns and warnings of a real ETL: in the result, the messages and the status of the experiment."""

from __future__ import annotations

import pytest

from cerebro.cli.program import main
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL

pytestmark = pytest.mark.slow


def test_an_etl_counts_columns_and_warns_of_copied_rows(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    """The rows of valid are copies of rows of train; each row counts once, over both workers' partitions."""
    experiment = lab.experiment()
    etl = experiment.run_etl(TinyETL())
    leak = "12 rows of valid (100.00%) have the input of a row of train. Remove them, or scores are too good"
    assert leak in etl.warnings()
    assert f"Data warning: {leak}" in capfd.readouterr().err
    table = etl.columns().set_index(["source", "column", "split"])
    label = table.xs(("metadata", "label", "train"))
    assert (label["rows"], label["missing"], label["distinct"]) == (40, 0, 3)
    assert label["frequent"] == {"0": 0.35, "1": 0.325, "2": 0.325}
    fields = table.xs("rows", level="source")
    assert set(fields.xs("train", level="split")["rows"]) == {40}
    assert set(fields.xs("valid", level="split")["rows"]) == {12}
    assert main(["status", experiment.name, "--home", str(lab.home.path)]) == 0
    assert f"Data warning: {leak}" in capfd.readouterr().out

"""What runs return: objects, data frames and figures made from the state. The only importer of pandas and of plotly."""

from cerebro.results.etl import EtlResult
from cerebro.results.failed import failed_table
from cerebro.results.fit import FitResult
from cerebro.results.model import TrainedModel
from cerebro.results.tables import prediction_table, test_table

__all__ = ["EtlResult", "FitResult", "TrainedModel", "failed_table", "prediction_table", "test_table"]

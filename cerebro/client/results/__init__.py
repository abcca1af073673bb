"""What runs return: objects, data frames and figures made from the state. The only importer of pandas and of plotly."""

from cerebro.client.results.etl import EtlResult
from cerebro.client.results.failed import failed_table
from cerebro.client.results.fit import FitResult
from cerebro.client.results.model import TrainedModel
from cerebro.client.results.tables import prediction_table, test_table

__all__ = ["EtlResult", "FitResult", "TrainedModel", "failed_table", "prediction_table", "test_table"]

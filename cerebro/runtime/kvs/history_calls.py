"""The part of `cerebro.runtime.kvs.client.KvsClient` for the history: what sub-epochs of all runs have shown.

The controller and `cerebro recommend` read it for forecasts, the controller adds to it, and admins remove it. kvs_api
stores it.
"""

from __future__ import annotations

from cerebro.contract.rest import api
from cerebro.contract.stored.history import History, HistoryAnswer, HistoryRequest
from cerebro.runtime.kvs.transport import Transport


class HistoryCalls(Transport):
    """A part of `cerebro.runtime.kvs.client.KvsClient`."""

    def history(self) -> History:
        """Return the complete history."""
        return self.call("GET", "/v1/history", History)

    def count_history(self, request: HistoryRequest) -> HistoryAnswer:
        """Add observations from events to the history, each once. Controller only.

        Raises:
            ConflictError: another controller leads.
            NotFoundError: the experiment does not exist.
        """
        return self.call("POST", "/v1/history", HistoryAnswer, request)

    def forget_history(self) -> int:
        """Remove the history and return its number of rows. Admins only."""
        return self.call("DELETE", "/v1/history", api.ForgottenAnswer).forgotten

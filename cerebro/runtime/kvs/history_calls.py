"""Calls of kvs_api about what sub-epochs have shown over all runs."""

from __future__ import annotations

from cerebro.contract.rest import api
from cerebro.contract.stored.history import History, HistoryAnswer, HistoryRequest
from cerebro.runtime.kvs.transport import Transport


class HistoryCalls(Transport):
    """A part of `cerebro.runtime.kvs.client.KvsClient`."""

    def history(self) -> History:
        """All that is known."""
        return self.call("GET", "/v1/history", History)

    def count_history(self, request: HistoryRequest) -> HistoryAnswer:
        """The controller's: have what events have shown counted, once.

        Raises:
            ConflictError: another controller leads.
            NotFoundError: the experiment does not exist.
        """
        return self.call("POST", "/v1/history", HistoryAnswer, request)

    def forget_history(self) -> int:
        """Remove the history and return its number of rows. Admins only."""
        return self.call("DELETE", "/v1/history", api.ForgottenAnswer).forgotten

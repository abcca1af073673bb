"""Views of the history of sub-epochs over all runs (`kvs_api.store.history`).

The leading controller adds rows; clients read them. It holds only hashes and figures, so every reader may see all rows.
"""

from __future__ import annotations

from starlette.responses import Response

from cerebro.contract.rest import api
from cerebro.contract.stored.history import HistoryRequest
from kvs_api.api.call import Call, answer
from kvs_api.api.registry_views import RegistryViews


class HistoryViews(RegistryViews):
    """One method for each history entry of `STORE`."""

    def history(self, call: Call) -> Response:
        """Return all readable rows."""
        return answer(self._store.history())

    def count_history(self, call: Call) -> Response:
        """Add results of a log's events to the rows, unless these events were counted before."""
        return answer(self._store.count_history(call.body(HistoryRequest)))

    def forget_history(self, call: Call) -> Response:
        """Remove all rows."""
        forgotten = self._store.forget_history()
        self._note(call, f"forgot the history: {forgotten} rows")
        return answer(api.ForgottenAnswer(forgotten=forgotten))

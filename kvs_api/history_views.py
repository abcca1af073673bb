"""The answers about the history. All of it is hashes and figures, so whoever may read may read it."""

from __future__ import annotations

from starlette.responses import Response

from cerebro.contract import api
from cerebro.contract.history import HistoryRequest
from kvs_api.call import Call, answer
from kvs_api.registry_views import RegistryViews


class HistoryViews(RegistryViews):
    """One method for each of its entries of `STORE`."""

    def history(self, call: Call) -> Response:
        """All rows that can be read."""
        return answer(self._store.history())

    def count_history(self, call: Call) -> Response:
        """What events have shown, to be counted once."""
        return answer(self._store.count_history(call.body(HistoryRequest)))

    def forget_history(self, call: Call) -> Response:
        """Remove all of it."""
        forgotten = self._store.forget_history()
        self._note(call, f"forgot the history: {forgotten} rows")
        return answer(api.ForgottenAnswer(forgotten=forgotten))

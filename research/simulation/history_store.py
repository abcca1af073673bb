"""The history part of the in-memory store."""

from __future__ import annotations

from collections.abc import Callable

from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.stored.history import History, HistoryAnswer, HistoryRequest, SubEpochHistory
from cerebro.errors import NotFoundError
from research.simulation.machine_store import VirtualMachineStore


class VirtualHistoryStore(VirtualMachineStore):
    """The methods of `cerebro.runtime.kvs.history_calls.HistoryCalls`, with the same meaning; rows never expire."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self._sub_epochs: dict[str, SubEpochHistory] = {}
        self._counted: dict[str, int] = {}
        """Experiment -> number of the newest counted event."""

    def experiment(self, name: str) -> ExperimentRecord:
        """Return the record of an experiment."""
        raise NotImplementedError

    def history(self) -> History:
        """Return the whole history."""
        return History(sub_epochs=dict(self._sub_epochs))

    def count_history(self, request: HistoryRequest) -> HistoryAnswer:
        """Count the results of events, each event once."""
        self.experiment(request.experiment)
        self._require_term(request.term)
        upto = self._counted.get(request.experiment, 0)
        if upto != request.after:
            return HistoryAnswer(upto=upto, is_counted=False)
        for key, row in request.sub_epochs.items():
            before = self._sub_epochs.pop(key, None)
            self._sub_epochs[key] = before.with_more(row) if before is not None else row
        self._counted[request.experiment] = request.upto
        return HistoryAnswer(upto=request.upto, is_counted=True)

    def forget_history(self) -> int:
        """Remove all rows."""
        forgotten = len(self._sub_epochs)
        self._sub_epochs.clear()
        return forgotten

    def code(self, sha256: str) -> CodeRecord:
        """Raise: a simulation has no code."""
        raise NotFoundError(f"no user code {sha256[:12]} in the store")

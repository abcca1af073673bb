"""Store contract: removed workers, size requests, and workers that do not start.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskRevoked
from cerebro.contract.records import AUTOSCALER, SizeRequest
from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import ConflictError, NotFoundError
from tests.kvs_api.bench import TASK, Bench, requested, worker


class SizeContract:
    """Tests with a new `bench` each."""

    # --- removed workers -------------------------------------------------------------------------

    def test_a_removed_worker_is_forgotten(self, bench: Bench) -> None:
        """It is not listed and gets no tasks, and its process learns that it was replaced."""
        bench.run_until("running")
        bench.store.remove_worker("worker-0")
        assert bench.store.workers() == ()
        assert bench.inbox() == []
        assert not bench.report().current
        assert bench.assign(2, task="etl-1/etl/train/p1") == "refused"

    def test_a_removed_worker_may_register_again(self, bench: Bench) -> None:
        """Its inbox is empty."""
        bench.run_until("assigned")
        bench.store.remove_worker("worker-0")
        bench.store.register(worker("b"))
        assert bench.report(incarnation="b").current
        assert bench.store.inbox("worker-0", "b", 0, wait_s=0) == ()

    def test_only_the_named_incarnation_is_removed(self, bench: Bench) -> None:
        """A worker that registered again stays."""
        bench.store.register(worker("b"))
        with pytest.raises(ConflictError, match="'worker-0'"):
            bench.store.remove_worker("worker-0", "a")
        assert len(bench.store.workers()) == 1
        bench.store.remove_worker("worker-0", "b")
        with pytest.raises(NotFoundError, match="'worker-0'"):
            bench.store.remove_worker("worker-0", "b")

    def test_attempts_of_a_removed_worker_can_be_revoked(self, bench: Bench) -> None:
        """Its lease holds until a revocation with `force`; the event has the kind of loss."""
        bench.run_until("running")
        bench.store.remove_worker("worker-0")
        assert bench.revoke() == "refused"
        step = api.Revoke(
            task=TASK, attempt=1, worker="worker-0", reason="gone", force=True, loss=FailureKind.OUT_OF_MEMORY
        )
        assert bench.decide(step) == ["done"]
        event = bench.log()[-1]
        assert isinstance(event, TaskRevoked)
        assert (event.reason, event.loss) == ("gone", FailureKind.OUT_OF_MEMORY)

    def test_a_worker_gets_no_revocation_of_its_predecessors_attempt(self, bench: Bench) -> None:
        """The process never had that attempt; removed workers get nothing either."""
        bench.run_until("running")
        bench.store.register(worker("b"))
        assert bench.revoke(force=True) == "done"
        assert bench.inbox("b") == []

    # --- the size of the cluster -----------------------------------------------------------------

    def test_a_size_request_is_pending_until_it_is_withdrawn(self, bench: Bench) -> None:
        """The newest request counts."""
        assert bench.store.size_request() is None
        bench.store.request_size(SizeRequest(workers=3, by="ann"))
        bench.store.request_size(SizeRequest(workers=4, by="bob"))
        assert bench.store.size_request() == SizeRequest(workers=4, by="bob")
        bench.store.withdraw_size_request(4)
        assert bench.store.size_request() is None

    def test_a_replaced_size_request_is_neither_answered_nor_withdrawn(self, bench: Bench) -> None:
        """The controller may answer the first request after the second arrived."""
        bench.store.request_size(SizeRequest(workers=4))
        with pytest.raises(ConflictError, match="3"):
            bench.store.withdraw_size_request(3)
        with pytest.raises(ConflictError, match="3"):
            bench.store.request_size(SizeRequest(workers=3, problem="quota"))
        assert bench.store.size_request() == SizeRequest(workers=4)

    def test_a_refused_size_request_has_a_reason(self, bench: Bench) -> None:
        """The reason stays until a new request."""
        bench.store.request_size(SizeRequest(workers=4))
        bench.store.request_size(SizeRequest(workers=4, problem="quota"))
        assert bench.store.size_request() == SizeRequest(workers=4, problem="quota")
        bench.store.request_size(SizeRequest(workers=4))
        assert bench.store.size_request() == SizeRequest(workers=4)

    def test_zero_workers_can_be_requested_only_while_no_run_is_open(self, bench: Bench) -> None:
        """The error names the open runs and the remedy.

        Zero is allowed once no run needs workers, and for the controller, which knows the paused runs.
        """
        bench.store.request_size(SizeRequest(workers=0, by="ann"))
        assert bench.store.size_request() == SizeRequest(workers=0, by="ann")
        bench.store.append(bench.experiment, requested("etl-1"))
        bench.store.request_size(SizeRequest(workers=3))
        with pytest.raises(
            ConflictError, match=rf"a run is open: {bench.experiment}/etl-1\. .*--workers 0 --pause"
        ):
            bench.store.request_size(SizeRequest(workers=0, by="ann"))
        assert bench.store.size_request() == SizeRequest(workers=3)
        for request in (SizeRequest(workers=0, by="ann", pause=True), SizeRequest(workers=0, by=AUTOSCALER)):
            bench.store.request_size(request)
            assert bench.store.size_request() == request
        bench.store.request_size(SizeRequest(workers=0, by=AUTOSCALER, problem="why"))
        bench.store.withdraw_size_request(0)
        assert bench.store.size_request() is None

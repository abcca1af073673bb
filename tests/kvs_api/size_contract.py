"""What every store promises about the number of workers: removing them, size requests, those that do not start.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskRevoked
from cerebro.contract.records import AUTOSCALER, SizeRequest
from cerebro.contract.rest import api
from cerebro.contract.tasks import FailureKind
from cerebro.errors import ConflictError, NotFoundError
from tests.kvs_api.bench import TASK, Bench, requested, worker


class SizeContract:
    """The tests; `bench` is made anew for each."""

    # --- workers that are gone for good ----------------------------------------------------------

    def test_a_removed_worker_is_forgotten(self, bench: Bench) -> None:
        """It is not listed, gets nothing, and its process is told that it is not the one any more."""
        bench.run_until("running")
        bench.store.remove_worker("worker-0")
        assert bench.store.workers() == ()
        assert bench.inbox() == []
        assert not bench.report().current
        assert bench.assign(2, task="etl-1/etl/train/p1") == "refused"

    def test_a_removed_worker_may_register_again(self, bench: Bench) -> None:
        """As if it never had: its inbox starts anew."""
        bench.run_until("assigned")
        bench.store.remove_worker("worker-0")
        bench.store.register(worker("b"))
        assert bench.report(incarnation="b").current
        assert bench.store.inbox("worker-0", "b", 0, wait_s=0) == ()

    def test_only_the_incarnation_that_is_meant_is_removed(self, bench: Bench) -> None:
        """A worker that came back meanwhile stays."""
        bench.store.register(worker("b"))
        with pytest.raises(ConflictError, match="'worker-0'"):
            bench.store.remove_worker("worker-0", "a")
        assert len(bench.store.workers()) == 1
        bench.store.remove_worker("worker-0", "b")
        with pytest.raises(NotFoundError, match="'worker-0'"):
            bench.store.remove_worker("worker-0", "b")

    def test_what_a_removed_worker_has_can_be_taken_back(self, bench: Bench) -> None:
        """Its lease counts until it is revoked by force; the event tells how the loss counts."""
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

    def test_a_worker_is_not_told_what_its_predecessor_is_to_give_back(self, bench: Bench) -> None:
        """Its process never had it; nor is anybody told of a worker that was removed."""
        bench.run_until("running")
        bench.store.register(worker("b"))
        assert bench.revoke(force=True) == "done"
        assert bench.inbox("b") == []

    # --- the size of the cluster -----------------------------------------------------------------

    def test_a_size_request_is_pending_until_it_is_withdrawn(self, bench: Bench) -> None:
        """There is none at first; the newest one counts."""
        assert bench.store.size_request() is None
        bench.store.request_size(SizeRequest(workers=3, by="ann"))
        bench.store.request_size(SizeRequest(workers=4, by="bob"))
        assert bench.store.size_request() == SizeRequest(workers=4, by="bob")
        bench.store.withdraw_size_request(4)
        assert bench.store.size_request() is None

    def test_a_size_request_that_was_replaced_is_neither_answered_nor_withdrawn(self, bench: Bench) -> None:
        """Who applied the first one must not lose the second one."""
        bench.store.request_size(SizeRequest(workers=4))
        with pytest.raises(ConflictError, match="3"):
            bench.store.withdraw_size_request(3)
        with pytest.raises(ConflictError, match="3"):
            bench.store.request_size(SizeRequest(workers=3, problem="quota"))
        assert bench.store.size_request() == SizeRequest(workers=4)

    def test_a_refused_size_request_says_why(self, bench: Bench) -> None:
        """Until a new one replaces it."""
        bench.store.request_size(SizeRequest(workers=4))
        bench.store.request_size(SizeRequest(workers=4, problem="quota"))
        assert bench.store.size_request() == SizeRequest(workers=4, problem="quota")
        bench.store.request_size(SizeRequest(workers=4))
        assert bench.store.size_request() == SizeRequest(workers=4)

    def test_none_are_asked_for_only_while_no_run_is_open(self, bench: Bench) -> None:
        """Who would stand still is named, with what to do; runs are paused first where that is said. Zero is a number
        like others once nobody needs workers, and where the controller asks, which knows what is paused."""
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

"""All writes of a controller are fenced by its term."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from cerebro.contract.records import SizeRequest, WorkerSetStatus
from cerebro.contract.rest import api
from cerebro.contract.stored.health import PaceRequest
from cerebro.errors import ConflictError
from cerebro.runtime.kvs.client import KvsClient
from controller.loop.leadership import fence
from tests.kvs_api.bench import LONG_S, PAUSED, Bench, note, worker
from tests.kvs_api.real import TOKEN, Service
from tests.kvs_api.test_contract import pass_a_moment


@pytest.fixture
def bench(service: Service) -> Iterator[Bench]:
    """A store whose first controller was replaced."""
    service.database.empty()
    with contextlib.closing(service.client()) as client:
        bench = Bench(store=client, pass_a_moment=pass_a_moment)
        client.register(worker("a"))
        assert client.lead("controller-0", LONG_S, process="next", is_start=True).term > bench.term
        yield bench


WRITES: dict[str, Callable[[KvsClient], object]] = {
    "request a size": lambda kvs: kvs.request_size(SizeRequest(workers=2)),
    "withdraw a size": lambda kvs: kvs.withdraw_size_request(3),
    "set pod_problems": lambda kvs: kvs.set_worker_set_status(WorkerSetStatus(note="none come")),
    "remove a worker": lambda kvs: kvs.remove_worker("worker-0", "a"),
    "report a pace": lambda kvs: kvs.report_pace(
        "worker-0", PaceRequest(is_slow=True, factor=3.0, sub_epochs=9, term=0)
    ),
}


def _state(kvs: KvsClient) -> object:
    return (
        kvs.size_request(),
        kvs.worker_set_status(),
        [each.record.worker for each in kvs.workers()],
        kvs.workers_health(),
        kvs.events("one"),
    )


@pytest.mark.parametrize("write", WRITES)
def test_a_late_write_of_an_earlier_controller_is_refused(bench: Bench, service: Service, write: str) -> None:
    """Each write has the term in a header."""
    late = KvsClient(service.address, TOKEN, write_headers=lambda: fence(bench.term))
    leads = bench.store
    assert isinstance(leads, KvsClient)
    leads.request_size(SizeRequest(workers=3))
    before = _state(leads)
    with contextlib.closing(late), pytest.raises(ConflictError, match="has ended"):
        WRITES[write](late)
    assert _state(leads) == before


def test_a_late_decision_is_refused_for_any_claimed_term(bench: Bench, service: Service) -> None:
    """Both the header and the body must name the current term."""
    late = KvsClient(service.address, TOKEN, write_headers=lambda: fence(bench.term))
    request = api.DecideRequest(term=bench.term + 1, after=0, steps=(note(PAUSED),))
    with contextlib.closing(late), pytest.raises(ConflictError):
        late.decide("one", request)
    assert bench.log() == ()


def test_a_former_leader_may_request_leadership(bench: Bench, service: Service) -> None:
    """The fence does not apply to the leadership call."""
    with contextlib.closing(
        KvsClient(service.address, TOKEN, write_headers=lambda: fence(bench.term))
    ) as former:
        assert former.lead("controller-0", LONG_S).term == 0

"""Tasks of a deleted experiment are erased in slices, with leader changes in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cerebro.contract.events import DeletionRequested
from cerebro.contract.records import ExperimentRecord
from cerebro.errors import ConflictError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store.store import Store
from tests.kvs_api.bench import LOCATORS, LONG_S, SHORT_S, Bench
from tests.kvs_api.real import Service
from tests.kvs_api.test_contract import pass_a_moment


@pytest.fixture
def bench(kvs: KvsClient) -> Bench:
    """A store with a task and a deletion request."""
    bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
    bench.run_until("commit")
    kvs.append("one", DeletionRequested(by="ann"))
    return bench


def late(service: Service, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> Store:
    """Return a store that runs `meanwhile` between finding and removing the tasks."""
    store = Store(service.database.url)
    tasks: Any = store._tasks

    def found(name: str) -> Iterator[list[str]]:
        slices = list(tasks(name))
        assert slices
        meanwhile()
        yield from slices

    monkeypatch.setattr(store, "_tasks", found)
    return store


def test_a_new_experiment_of_the_name_keeps_its_tasks(
    bench: Bench, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call was sent twice, and the other copy finished first."""

    def done_and_made_anew() -> None:
        bench.store.delete_experiment("one", bench.term)
        bench.store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        assert bench.assign() == "done"

    with pytest.raises(ConflictError, match="nobody asked to delete"):
        late(service, monkeypatch, done_and_made_anew).delete_experiment("one", bench.term)
    assert bench.step("start") == "done"


def test_a_late_deletion_of_a_freed_name_does_nothing(
    bench: Bench, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = late(service, monkeypatch, lambda: bench.store.delete_experiment("one", bench.term))
    with pytest.raises(NotFoundError, match="'one'"):
        store.delete_experiment("one", bench.term)
    assert len(bench.store.audit()) == 1


def test_a_former_leader_erases_no_task(
    bench: Bench, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader erases them."""

    def taken_over() -> None:
        bench.store.lead("controller-0", SHORT_S)
        pass_a_moment()
        assert bench.store.lead("controller-1", LONG_S).term == bench.term + 1

    with pytest.raises(ConflictError, match="term"):
        late(service, monkeypatch, taken_over).delete_experiment("one", bench.term)
    assert list(Store(service.database.url)._tasks("one"))

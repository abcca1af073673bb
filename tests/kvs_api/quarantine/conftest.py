"""Fixtures with a store that has unreadable experiments, and a controller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.runtime.volumes import Volumes
from controller.loop.loop import Controller
from controller.planning import SpawnedProcess
from controller.preparation import plan_maker, preparation
from controller.settings import Settings
from tests.controller.preparations import prepared_by
from tests.controller.test_loop import Nobody
from tests.kvs_api.bench import worker
from tests.kvs_api.quarantine.unreadable import NEWER, Store, Work
from tests.kvs_api.real import Service
from tests.waiting import HANG_S


@pytest.fixture
def store(service: Service) -> Iterator[Store]:
    store = Store(service)
    yield store
    store.close()


@pytest.fixture
def controlled(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Run a controller that plans in this process."""
    monkeypatch.setattr(plan_maker, "Preparation", prepared_by(preparation.prepare_etl))
    store.kvs.register(worker("a"))

    def work(is_so: Callable[[], object]) -> None:
        settings = Settings(
            server="-",
            token="-",
            holder="controller",
            tick_s=0.01,
            volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
        )
        controller = Controller(store.service.client(), settings, Nobody(), SpawnedProcess())
        thread = threading.Thread(target=controller.run)
        thread.start()
        try:
            for _ in range(6_000):
                if is_so():
                    return
                assert thread.is_alive(), "the controller died"
                threading.Event().wait(0.01)
            raise AssertionError("it did not happen")
        finally:
            controller.stop.set()
            thread.join(HANG_S)

    return work


@pytest.fixture
def bad(store: Store, tmp_path: Path, controlled: Work) -> Store:
    """A store with the quarantined experiment "bad"."""
    store.begin("bad", tmp_path)
    store.write("bad", NEWER)
    controlled(lambda: store.mark("bad"))
    return store

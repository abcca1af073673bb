"""What every store promises of devices: none is given twice, and none is lost.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import DeletionRequested, TaskAssigned
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.tasks import TrainTask
from cerebro.contract.ways import Way
from tests.kvs_api.bench import Bench, worker

A, B, C, D = (f"etl-1/etl/train/p{number}" for number in range(4))


def unit_body(key: str, way: Way | None) -> TrainTask:
    """A unit that runs by a way."""
    return TrainTask(
        key=key,
        experiment="one",
        run="fit-1",
        model=key.split("/")[2],
        hyperparams={"batch_size": 1},
        code="0" * 64,
        dataset="one-d",
        seed=0,
        hang_timeout_s=1.0,
        epoch=1,
        partition=0,
        unit=0,
        checkpoint=None,
        way=way,
    )


class OccupancyContract:
    """The tests; `bench` is made anew for each."""

    def test_event_and_inbox_name_the_devices(self, bench: Bench) -> None:
        """As the step did: several, one, or none."""
        bench.store.register(worker("a", devices=3))
        given = {A: (0, 2), B: (1,), C: ()}
        for task, devices in given.items():
            assert bench.assign(task=task, devices=devices) == "done"
        assert {e.task: e.devices for e in bench.log() if isinstance(e, TaskAssigned)} == given
        assert {i.task: i.devices for i in bench.store.inbox("worker-0", "a", 0, wait_s=0)} == given

    def test_event_and_inbox_name_the_way(self, bench: Bench) -> None:
        """As the body does; of one device without a way neither names one."""
        bench.store.register(worker("a", devices=2))
        ddp = Way(technique="ddp", params={"static": True}, size=2)
        for model, way, devices in (("m00", ddp, (0, 1)), ("m01", None, (0,))):
            key = f"fit-1/train/{model}/e1/p0"
            assert bench.assign(task=key, devices=devices, given=unit_body(key, way)) == "done"
        ways = {e.task: e.way for e in bench.log() if isinstance(e, TaskAssigned)}
        assert ways == {"fit-1/train/m00/e1/p0": ddp, "fit-1/train/m01/e1/p0": None}
        items = bench.store.inbox("worker-0", "a", 0, wait_s=0)
        assert {i.task: i.body.way for i in items if isinstance(i.body, TrainTask)} == ways

    def test_each_device_runs_one_and_has_one_in_its_queue(self, bench: Bench) -> None:
        """What is full on one device is not on the other, and the lane without a device is beside both."""
        bench.store.register(worker("a", devices=2))
        for place, devices in enumerate([(0,), (1,), ()]):
            for number in range(QUEUE_DEPTH):
                assert bench.assign(task=f"etl-1/etl/train/p{place}{number}", devices=devices) == "done"
            assert bench.assign(task=A, devices=devices) == "refused"
        assert bench.assign(task=A, devices=(0, 1)) == "refused"
        assert bench.types() == ["TaskAssigned"] * (3 * QUEUE_DEPTH)

    def test_a_worker_that_registered_no_devices_has_one(self, bench: Bench) -> None:
        """So an older version did, and what it is given names none but the first."""
        bench.store.register(worker("a"))
        assert bench.assign(task=A, devices=(1,)) == "refused"
        assert bench.assign(task=A, devices=(0,)) == "done"

    def test_an_attempt_starts_when_it_is_first_on_all_of_its_devices(self, bench: Bench) -> None:
        """However its devices overlap with those of older ones."""
        bench.store.register(worker("a", devices=2))
        for task, devices in ((A, (0,)), (B, (1,)), (C, (0, 1)), (D, ())):
            assert bench.assign(task=task, devices=devices) == "done"
        assert bench.step("start", task=D) == "done"
        assert bench.step("start", task=B) == "done"
        assert bench.step("start", task=C) == "refused"
        assert bench.step("start", task=A) == "done"
        assert bench.step("commit", task=A) == "done"
        assert bench.step("start", task=C) == "refused"
        assert bench.step("commit", task=B) == "done"
        assert bench.step("start", task=C) == "done"

    @pytest.mark.parametrize("end", ["commit", "fail", "give back", "revoke", "take back"])
    def test_an_end_makes_room_once(self, bench: Bench, end: str) -> None:
        """Whatever the end is, and however often it is told."""
        bench.store.register(worker("a", devices=1))
        assert bench.assign(task=A) == bench.assign(task=B) == "done"
        if end not in ("give back", "take back"):
            assert bench.step("start", task=A) == "done"
        for outcome in ("done", "already"):
            if end in ("revoke", "take back"):
                assert bench.revoke(task=A, force=True) == outcome
            else:
                assert bench.step("fail" if end == "give back" else end, task=A) == outcome
        assert bench.assign(task=C) == "done"
        assert bench.assign(task=D) == "refused"
        assert bench.step("start", task=C) == "refused"
        assert bench.step("start", task=B) == "done"

    def test_a_new_incarnation_begins_with_all_devices_free(self, bench: Bench) -> None:
        """What its predecessor had is in nobody's way, also when it is taken back later; so after a removal."""
        bench.store.register(worker("a", devices=2))
        for task, devices in ((A, (0, 1)), (B, (1,)), (C, ())):
            bench.assign(task=task, devices=devices)
        bench.step("start", task=A)
        bench.store.register(worker("b", devices=1))
        for task in (A, B):
            assert bench.revoke(task=task, force=True) == "done"
            assert bench.assign(2, task=task, incarnation="b") == "done"
        assert bench.assign(task=D, incarnation="b") == "refused"
        bench.store.remove_worker("worker-0")
        bench.store.register(worker("c", devices=1))
        assert bench.assign(task=D, incarnation="c") == "done"
        assert bench.step("start", task=D, incarnation="c") == "done"

    def test_registering_twice_frees_nothing(self, bench: Bench) -> None:
        """The registration came twice, the worker did not."""
        bench.store.register(worker("a"))
        assert bench.assign(task=A) == bench.assign(task=B) == "done"
        bench.store.register(worker("a"))
        assert bench.assign(task=C) == "refused"

    def test_devices_are_shared_by_all_experiments(self, bench: Bench) -> None:
        """Two that know nothing of each other cannot have the same place."""
        bench.store.register(worker("a"))
        other = Bench(store=bench.store, pass_a_moment=bench.pass_a_moment, experiment="two")
        assert bench.assign(task=A) == other.assign(task=A) == "done"
        assert bench.assign(task=B) == other.assign(task=B) == "refused"
        assert other.step("start", task=A) == "refused"
        assert bench.step("start", task=A) == "done"
        assert bench.step("commit", task=A) == "done"
        assert other.step("start", task=A) == "done"

    def test_a_deletion_frees_what_nobody_will_end(self, bench: Bench) -> None:
        """Of an experiment that could not be read, tasks may be open when it is deleted."""
        bench.store.register(worker("a"))
        assert bench.assign(task=A) == bench.assign(task=B) == "done"
        assert bench.step("start", task=A) == "done"
        bench.store.append("one", DeletionRequested(by="ann"))
        bench.store.delete_experiment("one", bench.term)
        other = Bench(store=bench.store, pass_a_moment=bench.pass_a_moment, experiment="two")
        assert other.assign(task=A) == other.assign(task=B) == "done"
        assert other.step("start", task=A) == "done"

    def test_only_the_worker_that_has_it_is_named_to_take_a_task_back(self, bench: Bench) -> None:
        """Else its device would stay taken for ever, and the log would say what is not so."""
        bench.store.register(worker("a"))
        bench.store.register(worker("a", "worker-1"))
        bench.assign(task=A)
        assert bench.revoke(task=A, name="worker-1", force=True) == "refused"
        assert bench.revoke(task=A, force=True) == "done"

"""Store contract: no device is assigned twice or lost.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import DeletionRequested, TaskAssigned
from cerebro.contract.parallel_plans import FUSED as FUSED_TECHNIQUE
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.rest import api
from cerebro.contract.steps import AssignedMember, FusedAssignment
from cerebro.contract.tasks.bodies import FusedTask, Position, TrainTask
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.contract.tasks.gangs import Member
from tests.kvs_api.bench import Bench, worker, worker_step

A, B, C, D = (f"etl-1/etl/train/p{number}" for number in range(4))


def sub_epoch_body(key: str, parallel_plan: ParallelPlan | None) -> TrainTask:
    """Return a sub-epoch's body with a parallel plan."""
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
        sub_epoch=0,
        position=Position(),
        checkpoint=None,
        parallel_plan=parallel_plan,
    )


GANG = "fit-1/train/m00/e1/p0+p1"


def gang(incarnation: str = "b") -> api.Assign:
    """Return a sub-epoch assignment for two workers; the second has this incarnation."""
    other = AssignedMember(worker="worker-1", incarnation=incarnation, partition=1)
    parallel_plan = ParallelPlan(technique="ddp", workers=2)
    body = sub_epoch_body(GANG, parallel_plan)
    return api.Assign(
        task=GANG, attempt=1, worker="worker-0", incarnation="a", other_members=(other,), body=body
    )


FUSED = tuple(f"fit-1/train/m0{number}/e1/p0" for number in range(3))


def group(attempt_of_second: int = 1) -> api.Assign:
    """Return the assignment of three sub-epochs as a fused group; the second has this attempt."""
    plan = ParallelPlan(technique=FUSED_TECHNIQUE, params={"models": 4}, processes="one")
    attempts = {key: attempt_of_second if key == FUSED[1] else 1 for key in FUSED}
    others = tuple(
        FusedAssignment(task=key, attempt=attempts[key], body=sub_epoch_body(key, plan)) for key in FUSED[1:]
    )
    body = sub_epoch_body(FUSED[0], plan)
    return api.Assign(task=FUSED[0], attempt=1, worker="worker-0", incarnation="a", fused=others, body=body)


class OccupancyContract:
    """Tests with a new `bench` each."""

    def test_event_and_inbox_name_the_devices(self, bench: Bench) -> None:
        """Covers several devices, one, and none."""
        bench.store.register(worker("a", devices=3))
        given = {A: (0, 2), B: (1,), C: ()}
        for task, devices in given.items():
            assert bench.assign(task=task, devices=devices) == "done"
        assert {e.task: e.devices for e in bench.log() if isinstance(e, TaskAssigned)} == given
        assert {i.task: i.devices for i in bench.store.inbox("worker-0", "a", 0, wait_s=0)} == given

    def test_event_and_inbox_name_the_parallel_plan(self, bench: Bench) -> None:
        """Without a parallel plan the field is empty in both."""
        bench.store.register(worker("a", devices=2))
        ddp = ParallelPlan(technique="ddp", params={"static": True}, size=2)
        for model, parallel_plan, devices in (("m00", ddp, (0, 1)), ("m01", None, (0,))):
            key = f"fit-1/train/{model}/e1/p0"
            assert bench.assign(task=key, devices=devices, given=sub_epoch_body(key, parallel_plan)) == "done"
        parallel_plans = {e.task: e.parallel_plan for e in bench.log() if isinstance(e, TaskAssigned)}
        assert parallel_plans == {"fit-1/train/m00/e1/p0": ddp, "fit-1/train/m01/e1/p0": None}
        items = bench.store.inbox("worker-0", "a", 0, wait_s=0)
        assert {
            i.task: i.body.parallel_plan for i in items if isinstance(i.body, TrainTask)
        } == parallel_plans

    def test_each_device_has_a_limited_number_of_tasks(self, bench: Bench) -> None:
        """Each device has its own limit, and tasks without a device have another."""
        bench.store.register(worker("a", devices=2))
        for place, devices in enumerate([(0,), (1,), ()]):
            for number in range(QUEUE_DEPTH):
                assert bench.assign(task=f"etl-1/etl/train/p{place}{number}", devices=devices) == "done"
            assert bench.assign(task=A, devices=devices) == "refused"
        assert bench.assign(task=A, devices=(0, 1)) == "refused"
        assert bench.types() == ["TaskAssigned"] * (3 * QUEUE_DEPTH)

    def test_an_attempt_starts_when_it_is_first_in_line_on_all_devices(self, bench: Bench) -> None:
        """Device sets may overlap with those of older attempts."""
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

    @pytest.mark.parametrize("end", ["commit", "fail", "release", "revoke", "revoke unstarted"])
    def test_an_ended_attempt_frees_its_device_once(self, bench: Bench, end: str) -> None:
        bench.store.register(worker("a", devices=1))
        assert bench.assign(task=A) == bench.assign(task=B) == "done"
        if end not in ("release", "revoke unstarted"):
            assert bench.step("start", task=A) == "done"
        for outcome in ("done", "already"):
            if end in ("revoke", "revoke unstarted"):
                assert bench.revoke(task=A, force=True) == outcome
            else:
                assert bench.step("fail" if end == "release" else end, task=A) == outcome
        assert bench.assign(task=C) == "done"
        assert bench.assign(task=D) == "refused"
        assert bench.step("start", task=C) == "refused"
        assert bench.step("start", task=B) == "done"

    def test_a_new_incarnation_has_all_devices_free(self, bench: Bench) -> None:
        """The predecessor's attempts occupy no devices, even if revoked later or after a removal."""
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

    def test_devices_are_shared_by_all_experiments(self, bench: Bench) -> None:
        bench.store.register(worker("a"))
        other = Bench(store=bench.store, pass_a_moment=bench.pass_a_moment, experiment="two")
        assert bench.assign(task=A) == other.assign(task=A) == "done"
        assert bench.assign(task=B) == other.assign(task=B) == "refused"
        assert other.step("start", task=A) == "refused"
        assert bench.step("start", task=A) == "done"
        assert bench.step("commit", task=A) == "done"
        assert other.step("start", task=A) == "done"

    def test_a_deletion_frees_devices_of_open_tasks(self, bench: Bench) -> None:
        """Tasks of an unreadable experiment may still be open when it is deleted."""
        bench.store.register(worker("a"))
        assert bench.assign(task=A) == bench.assign(task=B) == "done"
        assert bench.step("start", task=A) == "done"
        bench.store.append("one", DeletionRequested(by="ann"))
        bench.store.delete_experiment("one", bench.term)
        other = Bench(store=bench.store, pass_a_moment=bench.pass_a_moment, experiment="two")
        assert other.assign(task=A) == other.assign(task=B) == "done"
        assert other.step("start", task=A) == "done"

    def test_a_revocation_must_name_the_worker_of_the_task(self, bench: Bench) -> None:
        """Otherwise the device would stay occupied, and the log would name the wrong worker."""
        bench.store.register(worker("a"))
        bench.store.register(worker("a", "worker-1"))
        bench.assign(task=A)
        assert bench.revoke(task=A, name="worker-1", force=True) == "refused"
        assert bench.revoke(task=A, force=True) == "done"

    def test_a_gang_is_assigned_to_all_of_its_workers_or_to_none(self, bench: Bench) -> None:
        """If one worker is busy or restarted, all are refused.

        The event names all members, and each inbox has its part.
        """
        bench.store.register(worker("a"))
        bench.store.register(worker("b", name="worker-1"))
        assert bench.assign(task=A, name="worker-1", incarnation="b") == "done"
        assert bench.decide(gang()) == ["refused"]
        assert bench.revoke(task=A, name="worker-1") == "done"
        assert bench.decide(gang("old")) == ["refused"]
        assert bench.decide(gang()) == ["done"]
        (event,) = (e for e in bench.log() if isinstance(e, TaskAssigned) and e.task == GANG)
        assert (event.worker, event.other_members) == ("worker-0", (Member(worker="worker-1", partition=1),))
        for name, incarnation, number in (("worker-0", "a", 0), ("worker-1", "b", 1)):
            item = bench.store.inbox(name, incarnation, 0, wait_s=0)[-1]
            assert (item.task, item.attempt, item.member, item.cancel) == (GANG, 1, number, False)

    @pytest.mark.parametrize("end", ["commit", "fail", "revoke"])
    def test_an_ended_attempt_frees_all_members_of_its_gang(self, bench: Bench, end: str) -> None:
        """Until then no member starts another attempt, and each gets the revocation."""
        bench.store.register(worker("a"))
        bench.store.register(worker("b", name="worker-1"))
        assert bench.decide(gang()) == ["done"]
        assert bench.assign(task=B, name="worker-1", incarnation="b") == "done"
        assert bench.step("start", task=GANG) == "done"
        start = worker_step("start", 1, task=B)

        def starts() -> str:
            return bench.report(start, incarnation="b", name="worker-1").outcomes[0].outcome

        assert starts() == "refused"
        assert (
            bench.revoke(task=GANG, force=True) if end == "revoke" else bench.step(end, task=GANG)
        ) == "done"
        cancelled = [task for task, _, is_cancelled in bench.inbox("b", "worker-1") if is_cancelled]
        assert cancelled == ([GANG] if end == "revoke" else [])
        assert starts() == "done"
        assert bench.assign(task=C) == "done"
        assert bench.step("start", task=C) == "done"

    def test_a_fused_group_is_assigned_completely_or_not_at_all(self, bench: Bench) -> None:
        """A model that is being trained keeps the whole group away. The inbox has one entry, the log one event each."""
        bench.store.register(worker("a"))
        alone = api.Assign(
            task=FUSED[1], attempt=1, worker="worker-0", incarnation="a", body=sub_epoch_body(FUSED[1], None)
        )
        assert bench.decide(alone) == ["done"]
        assert bench.decide(group()) == ["refused"]
        assert bench.revoke(task=FUSED[1]) == "done"
        assert bench.decide(group()) == ["refused"]  # its second task needs another number
        assert bench.decide(group(2)) == ["done"]
        assert bench.decide(group(2)) == ["already"]
        assigned = [e for e in bench.log() if isinstance(e, TaskAssigned)][1:]
        assert [(e.task, e.attempt) for e in assigned] == [(FUSED[0], 1), (FUSED[1], 2), (FUSED[2], 1)]
        assert {e.group for e in assigned} == {FusedGroup(id=f"{FUSED[0]}#1", size=3)}
        item = bench.store.inbox("worker-0", "a", 0, wait_s=0)[-1]
        assert isinstance(item.body, FusedTask)
        assert [each.task for each in item.body.members] == list(FUSED)

    def test_a_fused_group_counts_as_one_attempt_until_its_last_task_has_ended(self, bench: Bench) -> None:
        """Its tasks start and end in any order; the next attempt of the device waits for all."""
        bench.store.register(worker("a"))
        assert bench.decide(group()) == ["done"]
        for _ in range(QUEUE_DEPTH - 1):
            assert bench.assign(task=A) == "done"
        assert bench.assign(task=B) == "refused"
        for task in (FUSED[2], FUSED[0], FUSED[1]):
            assert bench.step("start", task=task) == "done"
        assert bench.step("commit", task=FUSED[0]) == "done"
        assert bench.step("fail", task=FUSED[2]) == "done"
        assert bench.step("start", task=A) == "refused"
        assert bench.assign(task=B) == "refused"
        assert bench.revoke(task=FUSED[1], force=True) == "done"
        assert bench.step("start", task=A) == "done"
        assert bench.assign(task=B) == "done"

    def test_a_waiting_fused_group_starts_after_the_attempt_before_it(self, bench: Bench) -> None:
        bench.store.register(worker("a"))
        assert bench.assign(task=A) == "done"
        assert bench.decide(group()) == ["done"]
        assert bench.step("start", task=FUSED[1]) == "refused"
        assert bench.step("start", task=A) == "done"
        assert bench.step("commit", task=A) == "done"
        assert bench.step("start", task=FUSED[1]) == "done"
        assert bench.step("start", task=FUSED[0]) == "done"

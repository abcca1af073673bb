"""Workers of the last version that knew no ways, beside this version's controller and kvs_api: during an upgrade they
follow one after the other.

`worker-before-ways.json` is what such a worker sends, and what it can read: it ends at anything else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from cerebro.contract.api import Assign
from cerebro.contract.events import RunRequested, RunStarted, TaskAssigned, TaskFailed, TaskStarted, UnitSaved
from cerebro.contract.records import KNOWS_SHORTAGE, READS_BASES, READS_RAGGED, CodeRecord, WorkerRecord
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks import KINDS, Failure, FailureKind, InboxItem, TaskBody, TaskResult, TrainTask
from cerebro.contract.ways import SINGLE, Way
from cerebro.state import ExperimentState, ModelState, TaskKey, waiting_for
from cerebro.state.experiment import fold
from cerebro.state.workers import knows_ways
from controller import tasks
from controller.ready_tasks import may_run
from controller.simulation.cluster import Simulation
from controller.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    own_partition,
    plan,
    request,
    several_devices,
)
from tests.controller.test_fit_dispatch import RECORD, all_here, core_of
from tests.kvs_api.bench import Bench, savepoint
from tests.kvs_api.real import TOKEN, Service
from tests.state.stories import SHA, Story, etl_plan, joined, unit

OLDER: dict[str, Any] = json.loads((Path(__file__).parent / "worker-before-ways.json").read_text())
CHECKPOINTING, DDP = Way(technique="checkpointing"), Way(technique="ddp", size=2)
FULL = Failure(kind=FailureKind.OUT_OF_MEMORY, message="CUDA out of memory", place="device")
READABLE = {name: Draft202012Validator(schema) for name, schema in OLDER["answers"].items()}
"""Name of a request -> whether an answer to it can be read."""


def read(name: str, answer: Any) -> Any:
    """An answer, as such a worker reads it."""
    problems = [
        f"{'/'.join(map(str, each.path))}: {each.message}" for each in READABLE[name].iter_errors(answer)
    ]
    assert not problems
    return answer


# --- over HTTP ---------------------------------------------------------------------------------------


def test_it_is_answered_as_it_can_read(service: Service) -> None:
    """It registers, reads its inbox and user code, reports the fate of two attempts, asks which data sets are gone."""

    def ask(name: str, method: str, path: str, body: Any = None) -> Any:
        with urllib3.PoolManager(retries=False, timeout=30) as http:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = http.request(method, service.address + path, json=body, headers=headers)
        assert answer.status == 200, answer.data
        return read(name, json.loads(answer.data))

    client = service.client()
    bench = Bench(store=client, pass_a_moment=lambda: None)
    assert ask("register", "PUT", "/v1/workers/worker-0", OLDER["registration"]) == OLDER["registration"]
    story, key = Story(workers=0), unit(1, 0)
    kinds = WorkerRecord.model_validate(OLDER["registration"]).kinds
    story.tell(joined(0).model_copy(update={"kinds": kinds}))
    story.fit(models=1, partitions=1)
    outcomes = []
    for report in OLDER["reports"]:
        step = report["steps"][0]
        assert step["task"] == str(key)
        if step["op"] == "start":
            given = tasks.body(RECORD, story.state, story.run, key)
            assert bench.assign(step["attempt"], task=str(key), given=given) == "done"
        answer = ask("report", "POST", "/v1/workers/worker-0/reports", report)
        outcomes += [outcome["outcome"] for outcome in answer["outcomes"]]
    assert outcomes == ["done"] * len(OLDER["reports"])
    inbox = "/v1/workers/worker-0/inbox?incarnation=a&after=0&wait_s=0&places=1&devices=1"
    assert [item["attempt"] for item in ask("inbox", "GET", inbox)["items"]] == [1, 2]
    assert ask("reclaim", "GET", "/v1/reclaim") == {"seq": 0, "datasets": []}
    sha256 = hashlib.sha256(b"code").hexdigest()
    client.put_code(
        CodeRecord(sha256=sha256, fingerprint=sha256, class_name="Mine", source="", encoded="code")
    )
    assert ask("code", "GET", f"/v1/code/{sha256}")["encoded"] == "code"
    assert [event.type for event in bench.log()][-1] == "TaskCommitted"


# --- what the controller gives it --------------------------------------------------------------------


def simulate(older: frozenset[str], *devices: int, ways: tuple[Way, ...], **changes: Any) -> Simulation:
    """A finished run on workers that hold the partition of their number, of which some are older ones."""
    bodies: dict[tuple[str, int], TaskBody] = {}
    outcome = changes.pop("outcome", lambda body, attempt, worker: None)

    def see(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        bodies[body.key, attempt] = body
        failure: Failure | None = outcome(body, attempt, worker)
        return failure

    scenario = Scenario(
        holdings=own_partition(len(devices)),
        devices=several_devices(*devices),
        without_ways=older,
        outcome=see,
        **changes,
    )
    asked = plan(2, len(devices), ways=ways, validated=True)
    simulation = Simulation(scenario, request(2, 2), asked)
    simulation.run()
    assert_given_what_it_knows(simulation, bodies)
    return simulation


def assert_given_what_it_knows(simulation: Simulation, bodies: dict[tuple[str, int], TaskBody]) -> None:
    """Nothing that an older worker had in its inbox names a way, or anything else that it cannot read."""
    state = ExperimentState(name=EXPERIMENT)
    for event in simulation.log:
        if isinstance(event, TaskAssigned) and not knows_ways(state.workers[event.worker]):
            assert event.way is None
            assert event.task.split("/")[1] in state.workers[event.worker].kinds
            body = bodies.get((event.task, event.attempt))
            item = InboxItem(
                seq=1,
                experiment=EXPERIMENT,
                task=event.task,
                attempt=event.attempt,
                body=body,
                devices=event.devices,
            )
            read("inbox", {"items": [item.model_dump(mode="json")]})
        state.apply(event)


def runs_out_of_memory(body: TaskBody, attempt: int, worker: str) -> Failure | None:
    """Every unit of m01 that runs as it is written."""
    return FULL if isinstance(body, TrainTask) and body.model == "m01" and body.way is None else None


def test_a_model_that_needs_a_way_waits_until_the_worker_is_upgraded() -> None:
    """The other one goes on meanwhile; the worker's devices would do, so nothing is given up."""
    simulation = simulate(
        frozenset({"worker-0"}),
        2,
        ways=(SINGLE, DDP),
        outcome=runs_out_of_memory,
        outages=[WorkerOutage(worker="worker-0", start=30.0, length=5.0)],
    )
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert [model.state for model in run.models.values()] == [ModelState.FINISHED] * 2
    assert all(visit.way == DDP for visit in run.models["m01"].visits)
    assert all(visit.ended < 30.0 for visit in run.models["m00"].visits)
    assert all(visit.started >= 35.0 for visit in run.models["m01"].visits)


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    is_older=st.lists(st.booleans(), min_size=3, max_size=3),
    ways=st.permutations([SINGLE, CHECKPOINTING, DDP]),
    upgrades=st.lists(st.floats(0.5, 20), min_size=3, max_size=3),
    fails=st.sampled_from([None, runs_out_of_memory]),
    deaths=st.frozensets(st.integers(0, 30), max_size=2),
    times=st.randoms(use_true_random=False),
)
def test_whoever_is_upgraded_when_it_is_given_what_it_knows(
    counts: list[int],
    is_older: list[bool],
    ways: list[Way],
    upgrades: list[float],
    fails: Any,
    deaths: frozenset[int],
    times: Random,
) -> None:
    """Whatever ways come first, and whenever which worker is upgraded: all models are trained."""
    older = {
        f"worker-{number}": at
        for number, at in enumerate(upgrades)
        if is_older[number] and number < len(counts)
    }
    simulation = simulate(
        frozenset(older),
        *counts,
        ways=tuple(ways),
        unit_time=lambda body, worker: times.uniform(0.5, 4.0),
        outages=[WorkerOutage(worker=name, start=at, length=3.0) for name, at in older.items()],
        crash_before=deaths,
        **({"outcome": fails} if fails else {}),
    )
    state = fold(EXPERIMENT, simulation.log)
    assert_complete(state, epochs=2, partitions=len(counts))
    assert_exclusive(simulation)
    assert {model.state for model in state.runs["fit-1"].models.values()} == {ModelState.FINISHED}


def test_that_a_run_waits_for_an_upgrade_is_told() -> None:
    """With the names of the workers."""
    story = Story(workers=0)
    older = WorkerRecord.model_validate(OLDER["registration"])
    for number in range(2):
        story.tell(joined(number, devices=2).model_copy(update={"kinds": older.kinds}))
    story.fit(models=1, partitions=2, ways=(SINGLE, DDP))
    assert not waiting_for(story.state, story.run)
    attempt = story.start(unit(1, 0), 0)
    story.break_off(unit(1, 0), 0, attempt, FailureKind.NOT_APPLICABLE)
    assert waiting_for(story.state, story.run) == (
        "waiting for an upgrade of worker-0, worker-1, of a version that cannot train m00 by ddp-2"
    )
    story.tell(joined(0, incarnation="b", devices=2))
    assert not waiting_for(story.state, story.run)


def test_what_ranks_have_left_only_as_many_go_on_from() -> None:
    """A worker of one device, such as an older one, does the unit from its beginning."""
    story, key = Story(devices=2), unit(1, 0)
    story.fit(models=1, partitions=1, ways=(DDP, SINGLE))
    attempt = story.start(key, 0, (0, 1), DDP)
    left = savepoint(2, attempt)
    story.tell(UnitSaved(task=str(key), attempt=attempt, worker="worker-0", savepoint=left))
    story.break_off(key, 0, attempt, FailureKind.PREEMPTED)
    bodies = [tasks.body(RECORD, story.state, story.run, key, way) for way in (DDP, None, CHECKPOINTING)]
    assert [isinstance(body, TrainTask) and body.savepoint for body in bodies] == [left, None, None]


@pytest.mark.parametrize(
    ("kinds", "may"), [(("train", "trial"), False), (("train", "trial", READS_BASES), True)]
)
def test_frozen_weights_stay_in_each_checkpoint_while_a_worker_cannot_read_them_elsewhere(
    kinds: tuple[str, ...], may: bool
) -> None:
    """A version knew ways, and found checkpoints damaged whose frozen weights are in a file of their own."""
    story = Story(workers=0)
    story.tell(joined(0).model_copy(update={"kinds": ("train", "trial", READS_BASES)}))
    story.tell(joined(1).model_copy(update={"kinds": kinds}))
    story.fit(models=1, partitions=1)
    body = tasks.body(RECORD, story.state, story.run, unit(1, 0))
    assert isinstance(body, TrainTask)
    assert body.with_base is may


def test_ragged_rows_are_asked_for_where_they_are_known() -> None:
    """A worker of this version tells of them only if its task says that it may: a controller of an earlier one never
    does, and could not read it. Nor could an earlier worker read such a task."""
    story = Story(workers=0)
    for number, kinds in enumerate((KINDS, (*KINDS, READS_RAGGED))):
        story.tell(joined(number).model_copy(update={"kinds": kinds}))
    story.tell(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10})),
    )
    core = core_of(story)
    given = {
        step.worker: step.body
        for step in core.decide(all_here(story), core.state.runs["etl-1"])
        if isinstance(step, Assign)
    }
    assert {name: "with_ragged" in body.model_dump(mode="json") for name, body in given.items()} == {
        "worker-0": False,
        "worker-1": True,
    }


def test_who_preprocesses_anew_learns_that_memory_ran_out_if_it_can() -> None:
    """An earlier worker could not read such a task."""
    story = Story(workers=0)
    for number, kinds in enumerate((KINDS, (*KINDS, KNOWS_SHORTAGE))):
        story.tell(joined(number).model_copy(update={"kinds": kinds}))
    story.tell(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10})),
    )
    for task in ("etl-1/etl/train/p0", "etl-1/etl/train/p1"):
        worker = f"worker-{task[-1]}"
        story.tell(
            TaskAssigned(task=task, attempt=1, worker=worker),
            TaskStarted(task=task, attempt=1, worker=worker),
        )
        failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed")
        story.tell(TaskFailed(task=task, attempt=1, worker=worker, failure=failure))
    run = story.state.runs["etl-1"]
    assert {task.shortages for task in run.tasks.values()} == {1}
    core = core_of(story)
    given = {step.worker: step.body for step in core.decide(all_here(story), run) if isinstance(step, Assign)}
    assert {name: body.model_dump(mode="json").get("shortages") for name, body in given.items()} == {
        "worker-0": None,
        "worker-1": 1,
    }


@pytest.mark.parametrize("is_ragged", [False, True])
def test_ragged_rows_are_read_by_those_who_can(is_ragged: bool) -> None:
    """Validation is done by any worker, but an older one cannot read such rows; where no other is there, the run says
    that it waits. All else is done by older workers, too."""
    story, newer = Story(workers=0), (*KINDS, READS_RAGGED)
    for number, kinds in enumerate((KINDS, newer)):
        story.tell(joined(number).model_copy(update={"kinds": kinds}))
    story.etl(is_ragged=is_ragged)
    story.fit(models=1, validated=True)
    valid, asks = TaskKey(run="fit-1", kind="valid", model="m00", epoch=1), unit(1, 0)
    older, other = (story.state.workers[f"worker-{number}"] for number in range(2))
    assert may_run(story.state, story.run, other, valid)
    assert may_run(story.state, story.run, older, valid) is not is_ragged
    assert may_run(story.state, story.run, older, asks)
    assert not waiting_for(story.state, story.run)
    story.tell(joined(1, incarnation="b").model_copy(update={"kinds": KINDS}))
    told = (
        "waiting for an upgrade of worker-0, worker-1, of a version that cannot read rows with ragged fields"
    )
    assert waiting_for(story.state, story.run) == (told if is_ragged else "")
    # What earlier versions read of a log without ragged rows has not changed.
    assert ("is_ragged" in TaskResult(rows=1, is_ragged=is_ragged).model_dump(mode="json")) is is_ragged

"""A session's status, progress and run control."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro import Experiment, SubEpochSpec
from cerebro.client.failure_rules import FailureRule
from cerebro.client.requests.run_requests import checked_failure_rules
from cerebro.client.session import Session
from cerebro.contract.events import Event, RunFinished, RunRequested, RunStopRequested
from cerebro.contract.priority import HIGH, NORMAL
from cerebro.contract.records import (
    SILENT_S,
    ExperimentRecord,
    Locator,
    Locators,
    PodRef,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
)
from cerebro.contract.rest.api import Attended, AttendedRun, QueueAnswer, QueueEntry
from cerebro.contract.runs import EtlRequest
from cerebro.errors import BadRequestError, DataError
from tests.state.runs import TimedStory
from tests.state.stories import SHA, sub_epoch
from tests.state.test_beside import evaluation, half_trained


def opened(
    log: Sequence[Event],
    now: float,
    statuses: Sequence[WorkerStatus] = (),
    pod_problems: Mapping[str, str] | None = None,
    queue: QueueAnswer | None = None,
) -> Session:
    """A session over a store with this log, these worker reports and this queue."""

    def events(name: str, after: int, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        if wait_s:
            raise KeyboardInterrupt
        return tuple(log[after:])

    kvs = SimpleNamespace(
        events=events,
        snapshot=lambda name, of_format: None,
        workers=lambda: statuses,
        worker_set_status=lambda: WorkerSetStatus(pods=dict(pod_problems or {})),
        queued=lambda: queue or QueueAnswer(runs=()),
    )
    connection: Any = SimpleNamespace(kvs=kvs, page_of=lambda name, fit: "")
    record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
    return Session(connection, record, clock=lambda: now)


def test_the_status_shows_the_schedule_of_a_fit() -> None:
    """While it runs and after its end."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    story.begins(sub_epoch(2, 0), 0, 42.0)
    assert opened(story.log, story.zero + 44.0).status().splitlines() == [
        "experiment one",
        "  fit-1: running, 1/2 done",
        "    schedule: 44.0 s so far, at best 42.0 s (gap 4.8 %), idle 2.0 s of 44.0 device-seconds; epoch 2 of 2",
        "  best model: m00 of fit-1, loss 1 at epoch 1",
        "  worker-0: fit-1/train/m00/e2/p0",
    ]
    story.ends(sub_epoch(2, 0), 0, 52.0)
    story.append(RunFinished(run="fit-1", outcome="finished"))
    assert "    schedule: 52.0 s, at best 50.0 s (gap 4.0 %)" in opened(story.log, story.zero + 99.0).status()


def test_a_run_shows_its_share_and_its_devices() -> None:
    """Among other open runs, with the estimated remaining time, and the reason if it waits."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    idle = list(story.log)
    story.begins(sub_epoch(2, 0), 0, 40.0)
    entries = tuple(QueueEntry(experiment=name, run="fit-1") for name in ("one", "two"))
    attended_run = AttendedRun(experiment="one", run="fit-1", devices=0)
    other = AttendedRun(experiment="two", run="fit-1", priority=HIGH, devices=1)
    shared = QueueAnswer(runs=entries, attended=Attended(runs=(attended_run, other), devices=2))
    session = opened(story.log, story.zero + 40.0, queue=shared)
    assert "    runs now: due 20% of the cluster, has 1 of 2 devices" in session.status()
    assert "about 5 min left" in session.status()
    found = session.queue_position(session.chosen(None))
    assert found is not None
    assert found.due == pytest.approx(0.2)
    assert (found.devices, found.of) == (1, 2)
    wanting = attended_run.model_copy(update={"could_use_more": True})
    waits = shared.model_copy(update={"attended": Attended(runs=(wanting, other), devices=10)})
    assert (
        "(other runs have the devices, and it is next in turn)"
        in opened(idle, story.zero + 40.0, queue=waits).status()
    )
    alone = shared.model_copy(update={"runs": entries[:1]})
    assert "due" not in opened(story.log, story.zero + 40.0, queue=alone).status()


def test_a_wait_reason_from_the_log_precedes_the_queue_position(terminal: list[str]) -> None:
    """A queued run that waits for another run of its experiment, in the status and next to the bars."""
    story = half_trained()
    story.append(evaluation(2, "m01"))
    entries = tuple(QueueEntry(experiment="one", run=run) for run in ("fit-1", "test-2"))
    session = opened(story.log, story.time, queue=QueueAnswer(runs=entries, open_runs=1))
    why = "fit-1 is running, and its model m01 is not finished"
    assert f"  test-2: queued, 0/0 done ({why})" in session.status()
    with pytest.raises(KeyboardInterrupt):
        session.follow("test-2", progress=True)
    assert f"test-2: {why}" in terminal
    assert not any("open before it" in line for line in terminal)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the lines that progress bars print."""
    lines: list[str] = []
    monkeypatch.setattr("tqdm.tqdm.write", lambda line, **_: lines.append(line))
    return lines


def test_the_status_shows_why_workers_were_lost() -> None:
    """Also a worker that the log does not yet count as lost; with the reasons of its pod and of missing pods."""
    story = TimedStory(workers=2)
    story.fit(models=1, partitions=1)
    record = WorkerRecord(
        worker="worker-0",
        incarnation="a",
        weight=1,
        cores=1,
        kinds=("train",),
        pod=PodRef(name="cerebro-worker-0", uid="1", container="worker"),
    )
    silent = WorkerStatus(record=record, silent_s=SILENT_S + 1)
    pod_problems = {
        "cerebro-worker-0": "no node fits",
        "cerebro-worker-7": "Kubernetes does not create it: quota",
    }
    lines = opened(story.log, story.zero, [silent], pod_problems).status().splitlines()
    assert lines[-4:] == [
        "  worker-0: lost (cerebro-worker-0 does not start: no node fits)",
        "  worker-1: idle",
        "  cerebro-worker-0 does not start: no node fits",
        "  cerebro-worker-7 does not start: Kubernetes does not create it: quota",
    ]
    lines = opened(story.log, story.zero, [silent]).status().splitlines()
    assert "  worker-0: lost (it does not report)" in lines


class Spec(SubEpochSpec):
    """Never runs."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        raise NotImplementedError

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        raise NotImplementedError

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        raise NotImplementedError


def test_a_run_stopped_by_a_user_ends_with_a_warning() -> None:
    """The warning names the user, so a script does not use half-trained models unnoticed."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    story.append(RunStopRequested(run="fit-1", by="ann"), RunFinished(run="fit-1", outcome="stopped"))
    experiment = Experiment.__new__(Experiment)
    session: Any = opened(story.log, story.time)
    session.complete = lambda request, **options: session.state().runs["fit-1"]
    session.connection.kvs.put_code = lambda code: SimpleNamespace(sha256=SHA)
    session.connection.kvs.code = session.connection.kvs.archive = session.connection.files = None
    experiment._session = session
    with pytest.warns(
        UserWarning, match=r"fit-1 .* was stopped by ann after 1 of 2 tasks: .*resume"
    ) as warnings:
        result = experiment.run_fit(Spec(), {"batch_size": 1}, metric="loss", mode="min")
    assert [warning.filename for warning in warnings] == [__file__]
    assert list(result.leaderboard()["state"]) == ["stopped"]


def test_a_request_has_the_priority_and_project_of_its_run() -> None:
    """They are in the request; invalid values are refused."""
    session = opened(TimedStory(workers=1).log, 0.0)
    etl_request = EtlRequest(code=SHA, code_fingerprint=SHA)
    with pytest.raises(BadRequestError, match=r"no priority 'urgent': choose one of low, normal, high"):
        session.new_run(etl_request, priority="urgent")
    with pytest.raises(BadRequestError, match=r"project is 'My birds': use at most 50 lower-case letters"):
        session.new_run(etl_request, project="My birds")
    wrong: Any = 3
    with pytest.raises(BadRequestError, match="project is 3"):
        session.new_run(etl_request, project=wrong)
    sent = [session.new_run(etl_request, priority="high", project="birds"), session.new_run(etl_request)]
    assert [(event.priority, event.project) for event in sent] == [(HIGH, "birds"), (NORMAL, "")]


@pytest.mark.parametrize(
    ("is_answered", "message"),
    [
        (True, "etl-1 continues in the cluster: follow it with Experiment.attach('one').watch()"),
        (False, "etl-1 continues in the cluster if the request arrived: follow it with Experiment"),
    ],
)
def test_an_interrupt_says_last_that_the_run_continues(is_answered: bool, message: str) -> None:
    """Even if the store has not answered the request yet."""
    story = TimedStory(workers=1)
    session: Any = opened(story.log, story.time)

    def append(name: str, event: RunRequested) -> None:
        story.append(event)
        if not is_answered:
            raise KeyboardInterrupt

    session.connection.kvs.append = append
    session.connection.kvs.live = lambda name, after: ()
    with pytest.raises(KeyboardInterrupt) as caught:
        session.complete(EtlRequest(code=SHA, code_fingerprint=SHA), progress=False)
    assert traceback.format_exception(caught.value)[-1].startswith(message)


@pytest.mark.parametrize("share", [-0.01, 1.5, float("nan"), "all"])
def test_an_invalid_share_to_verify_is_refused(share: Any) -> None:
    """Before anything is sent, with the valid range."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    experiment = Experiment.__new__(Experiment)
    experiment._session = opened(story.log, story.zero)
    vars(experiment.connection.kvs)["put_code"] = None  # a call would raise
    with pytest.raises(DataError, match=r"verify is .*, expected the fraction of sub-epochs .* from 0 to 1"):
        experiment.run_fit(Spec(), {"batch_size": 1}, metric="loss", mode="min", verify=share)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [FailureRule("a", "x(")],
            r"failure_rules\[0\] \('a'\): the pattern 'x\(' is not .* at position 1",
        ),
        (
            [FailureRule("a", "x"), FailureRule("b", "y" * 201)],
            r"failure_rules\[1\] \('b'\): .* 201 characters, .* 200",
        ),
        (
            [FailureRule("a", "x", "explode")],  # type: ignore[arg-type]
            r"action is 'explode', expected one of label, no_retry, retry_elsewhere",
        ),
        ([FailureRule("a", "x", "quarantine")], r"only rules of the cluster .*worker.failureRules"),  # type: ignore[arg-type]
        ([FailureRule("", "x")], r"failure_rules\[0\]: name is ''"),
        ([FailureRule("a", "")], r"failure_rules\[0\] \('a'\): pattern is ''"),
        ([FailureRule("a", "x")] * 21, r"failure_rules has 21 rules, expected at most 20"),
        ("oom", r"failure_rules is 'oom', expected a list of rules"),
    ],
)
def test_invalid_failure_rules_are_refused_with_their_position(rules: Any, message: str) -> None:
    """Before anything is sent."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    experiment = Experiment.__new__(Experiment)
    experiment._session = opened(story.log, story.zero)
    vars(experiment.connection.kvs)["put_code"] = None  # a call would raise
    with pytest.raises(DataError, match=message):
        experiment.run_fit(Spec(), {"batch_size": 1}, metric="loss", mode="min", failure_rules=rules)
    with pytest.raises(DataError, match=message):
        checked_failure_rules(rules)  # the first check of `run_etl`


def test_no_event_is_shown_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the fold failed within an event, the status shows the state before it, on every call."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    shown = opened(story.log[:-1], story.zero + 44.0).status().splitlines()

    def fails(*given: object, **named: object) -> None:
        raise KeyError("m99")

    monkeypatch.setattr("cerebro.state.tasks.attempt_events.commit_events.commit", fails)
    session = opened(story.log, story.zero + 44.0)
    for _ in range(2):
        head, unreadable, *rest = session.status().splitlines()
        assert [head, *rest] == shown
        assert f"event {len(story.log)} of experiment 'one' cannot be read" in unreadable


def test_an_interrupted_fold_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C within an event loses nothing."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    session = opened(story.log, story.zero + 44.0)

    def fails(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cerebro.state.tasks.attempt_events.commit_events.commit", fails)
        with pytest.raises(KeyboardInterrupt):
            session.state()
    assert session.state() == story.state


def test_another_thread_may_read_the_status_while_a_run_is_followed() -> None:
    """`status` reads events while `follow` waits for the same events; each event counts once."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    log = list(story.log)
    session = opened(log, story.zero)
    requests: list[str] = []

    def events(name: str, after: int, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        if wait_s and not requests:
            story.append(RunFinished(run="fit-1", outcome="failed", error="boom"))
            log.extend(story.log[len(log) :])
            requests.append(session.status())
        return tuple(log[after:])

    vars(session._kvs)["events"] = events
    assert session.follow("fit-1", progress=False).failures.error == "boom"
    assert "fit-1: failed" in requests[0]

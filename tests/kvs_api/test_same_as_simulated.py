"""The real and the simulated store give the same results for random sequences of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClusterEvent,
    DeletionRequested,
    ExperimentArchived,
    ModelRetried,
    ReplicasChanged,
    RunFinished,
    RunResumed,
    RunStopRequested,
    WorkerLost,
)
from cerebro.contract.records import ExperimentRecord, Replica, SizeRequest
from cerebro.contract.rest import api
from cerebro.errors import CerebroError
from research.simulation.store import VirtualStore
from tests.kvs_api.bench import (
    JOINED,
    LOCATORS,
    LONG_S,
    OTHER,
    PAUSED,
    SHORT_S,
    TASK,
    Bench,
    live_point,
    note,
    requested,
    started,
    worker,
    worker_step,
)
from tests.kvs_api.real import Service
from tests.kvs_api.test_contract import pass_a_moment

Call = Callable[[Bench], object]


@dataclass
class Named:
    """A call with a readable name for Hypothesis' reports."""

    name: str
    call: Call

    def __repr__(self) -> str:
        return self.name


tasks = st.sampled_from([TASK, OTHER])
attempts = st.integers(1, 3)
names = st.sampled_from(["worker-0", "worker-1"])
incarnations = st.sampled_from(["a", "b"])
leases = st.sampled_from([SHORT_S, LONG_S])
some_devices = st.sampled_from([(), (0,), (1,), (0, 1)])


def assign(task: str, attempt: int, name: str, incarnation: str, devices: tuple[int, ...] = (0,)) -> Named:
    return Named(
        f"assign {task} {attempt} {name}/{incarnation} {devices}",
        lambda bench: bench.assign(attempt, task=task, incarnation=incarnation, name=name, devices=devices),
    )


def report(op: str, task: str, attempt: int, name: str, incarnation: str, lease_s: float) -> Named:
    def call(bench: Bench) -> object:
        answer = bench.report(
            worker_step(op, attempt, task=task),
            incarnation=incarnation,
            name=name,
            lease_s=lease_s,
            live=[live_point(attempt, task=task, rows=attempt)],
        )
        return answer.current, [outcome.outcome for outcome in answer.outcomes]

    return Named(f"{op} {task} {attempt} {name}/{incarnation} {lease_s:g}", call)


def revoke(attempt: int, name: str, force: bool) -> Named:
    return Named(
        f"revoke {attempt} {name} {force}", lambda bench: bench.revoke(attempt, name=name, force=force)
    )


def request_release(task: str, attempt: int, name: str) -> Named:
    return Named(f"ask {task} {attempt} {name}", lambda bench: bench.ask(attempt, task=task, name=name))


def register(name: str, incarnation: str, devices: int = 0) -> Named:
    return Named(
        f"register {name}/{incarnation} {devices}",
        lambda bench: bench.store.register(worker(incarnation, name, devices=devices)),
    )


def remove(name: str, incarnation: str | None) -> Named:
    return Named(f"remove {name}/{incarnation}", lambda bench: bench.store.remove_worker(name, incarnation))


def size_request(workers: int, problem: str) -> Named:
    request = SizeRequest(workers=workers, problem=problem)
    return Named(f"request {workers} {problem}", lambda bench: bench.store.request_size(request))


def drop_wish(workers: int) -> Named:
    return Named(
        f"withdraw the request for {workers}", lambda bench: bench.store.withdraw_size_request(workers)
    )


def lead(number: int, ttl_s: float) -> Named:
    def call(bench: Bench) -> object:
        answer = bench.store.lead(f"controller-{number}", ttl_s)
        bench.term = answer.term or bench.term
        return answer

    return Named(f"lead {number} {ttl_s:g}", call)


def append(run: int, seed: int) -> Named:
    return Named(
        f"append etl-{run} {seed}",
        lambda bench: bench.store.append("one", requested(f"etl-{run}", seed=seed)),
    )


def decide_note(kind: int, after: int) -> Named:
    event = (
        PAUSED,
        RunResumed(run="etl-1"),
        RunFinished(run="etl-1", outcome="finished"),
    )[kind]
    return Named(f"note {event.type} after {after}", lambda bench: bench.decide(note(event), after=after))


def write_cluster_event(kind: int, after: int | None, term: int | None) -> Named:
    event: ClusterEvent = (
        JOINED,
        WorkerLost(worker="worker-0", incarnation="a", reason="silent"),
        ReplicasChanged(volume="worker-0", gained=(Replica(dataset="d", partition=0),)),
    )[kind]

    def call(bench: Bench) -> object:
        number = len(bench.cluster_log()) if after is None else after
        request = api.ClusterLogRequest(
            term=bench.term if term is None else term, after=number, events=(event, event)
        )
        answer = bench.store.write_cluster_log(request)
        return answer.is_written, [event.type for event in answer.events]

    return Named(f"write {event.type} after {after} as {term}", call)


def command_for(number: int) -> Named:
    event = (
        RunStopRequested(run="etl-1"),
        RunResumed(run="etl-1"),
        ModelRetried(run="etl-2", model="m00"),
        ExperimentArchived(is_archived=True),
        DeletionRequested(by="ann"),
    )[number]
    return Named(f"command {event.type}", lambda bench: bench.store.append("one", event))


def begin(run: int, dataset: str) -> Named:
    event = started(f"etl-{run}", dataset=dataset)
    return Named(f"begin etl-{run} on {dataset}", lambda bench: bench.decide(note(event)))


def delete(is_made_anew: bool) -> Named:
    def call(bench: Bench) -> None:
        bench.store.delete_experiment("one", bench.term)
        if is_made_anew:
            bench.store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))

    return Named(f"delete {is_made_anew}", call)


def dequeue(run: int, after: int) -> Named:
    step = api.Dequeue(run=f"etl-{run}")
    return Named(f"dequeue etl-{run} after {after}", lambda bench: bench.decide(step, after=after))


def cut(name: str, keep: int, until: int) -> Named:
    def call(bench: Bench) -> object:
        moved = bench.cut(name, keep=keep, until=until)
        return moved and (moved.first, moved.last, moved.entries)

    return Named(f"cut {name or 'the cluster'} but {keep} until {until}", call)


calls = st.one_of(
    st.builds(assign, tasks, attempts, names, incarnations, some_devices),
    st.builds(
        report,
        st.sampled_from(["start", "renew", "save2", "save5", "commit", "fail"]),
        tasks,
        attempts,
        names,
        incarnations,
        leases,
    ),
    st.builds(revoke, attempts, names, st.booleans()),
    st.builds(request_release, tasks, attempts, names),
    st.builds(register, names, incarnations, st.integers(0, 2)),
    st.builds(remove, names, st.none() | incarnations),
    st.builds(size_request, st.integers(1, 2), st.sampled_from(["", "quota"])),
    st.builds(drop_wish, st.integers(1, 2)),
    st.builds(lead, st.integers(0, 1), leases),
    st.builds(append, st.integers(1, 2), st.integers(0, 1)),
    st.builds(
        write_cluster_event, st.integers(0, 2), st.none() | st.integers(0, 4), st.none() | st.integers(0, 1)
    ),
    st.builds(decide_note, st.integers(0, 2), st.integers(0, 6)),
    st.builds(command_for, st.integers(0, 4)),
    st.builds(begin, st.integers(1, 2), st.sampled_from("de")),
    st.builds(delete, st.booleans()),
    st.builds(dequeue, st.integers(1, 2), st.integers(0, 6)),
    st.builds(cut, st.sampled_from(["one", ""]), st.integers(1, 3), st.integers(3, 60)),
)

likely = st.one_of(
    calls,
    # The steps of a successful task, so that sequences reach deep states.
    st.builds(assign, st.just(TASK), attempts, st.just("worker-0"), st.just("a")),
    st.builds(
        report,
        st.sampled_from(["start", "save2", "save5", "commit", "fail"]),
        st.just(TASK),
        attempts,
        st.just("worker-0"),
        st.just("a"),
        leases,
    ),
    st.builds(request_release, st.just(TASK), st.just(1), st.just("worker-0")),
    st.builds(cut, st.just("one"), st.just(1), st.just(api.MAX_SEQ)),
)


def outcome(named: Named, bench: Bench) -> object:
    """Return a call's result, or the type of its error."""
    try:
        return named.call(bench)
    except CerebroError as error:
        return type(error).__name__


def facts(bench: Bench) -> dict[str, object]:
    """Return all readable state except times."""
    untimed = {"time": 0.0}
    whole = {
        "queue": bench.store.queue(),
        "deleting": bench.store.deleting(),
        "reclaim": bench.store.reclaim(),
        "audit": [(entry.by, entry.what) for entry in bench.store.audit()],
        "marks": [(e.open_runs, e.is_archived, e.is_deleting, e.last_seq) for e in bench.store.experiments()],
    }
    if not whole["marks"]:
        return whole
    return whole | {
        "log": [event.model_copy(update=untimed) for event in bench.log()],
        "cluster_log": [event.model_copy(update=untimed) for event in bench.cluster_log()],
        "live": [point.model_copy(update=untimed) for point in bench.store.live("one")],
        "size_request": bench.store.size_request(),
        "workers": [status.record for status in bench.store.workers()],
        "inboxes": {
            (name, incarnation): bench.store.inbox(name, incarnation, 0, wait_s=0)
            for name in ("worker-0", "worker-1")
            for incarnation in ("a", "b")
        },
    }


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sequence=st.lists(likely, min_size=1, max_size=40))
def test_both_stores_give_the_same_answers(service: Service, sequence: list[Named]) -> None:
    """Compares each result, and afterwards the logs, queue and inboxes."""
    service.database.empty()
    client = service.client()
    now = [1000.0]

    def tick() -> None:
        now[0] += SHORT_S + 0.001

    real = Bench(store=client, pass_a_moment=pass_a_moment)
    simulated = Bench(store=VirtualStore(lambda: now[0]), pass_a_moment=tick)
    try:
        for named in [register("worker-0", "a"), *sequence]:
            assert outcome(named, real) == outcome(named, simulated), named
            simulated.pass_a_moment()
        assert facts(real) == facts(simulated)
    finally:
        client.close()

"""The stacks of a running sub-epoch are read on request, with a real store and worker."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskCommitted
from cerebro.contract.rest import api
from cerebro.errors import ClusterError, ConflictError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.kvs.stack_requests import stacks_of
from tests.kvs_api.bench import TASK, Bench, worker
from tests.worker.agent.agents import Agents, until


def test_a_running_sub_epoch_reports_its_stacks_and_continues(agents: Agents, kvs: KvsClient) -> None:
    """Its log has the text too. Ended attempts are refused."""
    agents.start()
    key = agents.give(1, "wait")
    agents.begun(1)
    request, text = stacks_of(kvs, "one", key)
    assert (request.worker, request.attempt) == ("worker-0", 1)
    assert "fake_handler.py" in text
    until(lambda: text.splitlines()[-1] in agents.log(1), "the log has it, too")
    stacks_of(kvs, "one", key)
    agents.gate(1).touch()
    assert isinstance(agents.end_of(key), TaskCommitted)
    with pytest.raises(ConflictError, match="does not run now: attempt 1 is committed at worker-0"):
        stacks_of(kvs, "one", key)
    with pytest.raises(NotFoundError, match="was ever assigned"):
        stacks_of(kvs, "one", "fit-1/train/m00/e1/p7")


def running(kvs: KvsClient) -> Bench:
    """Start a task on a worker that does not read its inbox."""
    bench = Bench(store=kvs, pass_a_moment=lambda: None)
    kvs.register(worker("a"))
    bench.assign()
    bench.step("start")
    return bench


def test_a_worker_that_does_not_answer_is_named(kvs: KvsClient) -> None:
    """The error appears after the timeout and not before."""
    running(kvs)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(ClusterError, match="worker-0 has not said within 15 s where"):
        stacks_of(kvs, "one", TASK, clock=lambda: now[0], sleep=sleep)
    assert now[0] >= 15


def test_a_request_for_stacks_counts_once_and_is_answered_once(kvs: KvsClient) -> None:
    """A repeated request is the same one; answers without a request are dropped; an empty answer counts."""
    running(kvs)
    question = api.StacksRequest(task=TASK, question="0" * 32)
    for _ in range(2):
        kvs.request_stacks("one", question)
    (found,) = [item for item in kvs.inbox("worker-0", "a", 0, wait_s=0) if item.stacks]
    assert (found.task, found.attempt, found.stacks) == (TASK, 1, "0" * 32)
    assert kvs.stacks("one", found.stacks) is None
    kvs.report_stacks("worker-0", api.StacksReport(experiment="one", question=found.stacks, text=""))
    assert kvs.stacks("one", found.stacks) == ""
    kvs.report_stacks("worker-0", api.StacksReport(experiment="one", question="1" * 32, text="late"))
    with pytest.raises(NotFoundError, match="request the stack trace again"):
        kvs.stacks("one", "1" * 32)

"""Snapshots of folds, in a separate process: ``python -m controller.loop.snapshot_process``.

It folds the log from the previous snapshot, because packing the controller's changing fold would block the
loop for seconds. Its memory and processor time end with it. A request is JSON on standard input, the answer
JSON on standard output.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback

from cerebro.contract.base import Contract
from cerebro.errors import CerebroError, ConflictError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.snapshots import packed, restored, restored_cluster, snapshot_format

_NICE = 10
"""Decisions and training have precedence."""


class SnapshotQuestion(Contract):
    """A request for a snapshot.

    Attributes:
        server, token: of kvs_api.
        experiment: name of the experiment; "" for the cluster log.
        created: creation time of the experiment, in seconds.
        until: number of its last event. Later ones may not be in TensorBoard's files.
        least: minimum number of new events.
        term: term of the controller.
    """

    server: str
    token: str
    experiment: str
    created: float = 0.0
    until: int
    least: int
    term: int


class _Answer(Contract):
    seq: int = 0
    size: int = 0
    problem: str = ""


def make_snapshot(question: SnapshotQuestion) -> int:
    """Make a snapshot; return the event number of the newest one, or 0 without any.

    Blocks: for a thread that lives as long as this process.

    Raises:
        ConflictError: it failed, with the reason.
    """
    command = with_parent_death_signal([sys.executable, "-P", "-m", "controller.loop.snapshot_process"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate(question.model_dump_json().encode())
    if process.returncode:
        raise ConflictError(f"the process that makes snapshots ended with exit code {process.returncode}")
    answer = _Answer.model_validate_json(said)
    if answer.problem:
        raise ConflictError(answer.problem)
    return answer.seq


def _answer(question: SnapshotQuestion) -> _Answer:
    kvs = KvsClient(question.server, question.token, retry_for_s=10.0)
    name = question.experiment
    state = restored(kvs, name) if name else restored_cluster(kvs)
    began = state.seq
    if question.until - began < question.least:
        return _Answer(seq=began)
    while state.seq < question.until:
        read = kvs.events(name, state.seq) if name else kvs.cluster_log(state.seq)
        events = [event for event in read if event.seq <= question.until]
        for event in events:
            state.apply(event)  # type: ignore[arg-type] # each log has events of its own kind
        if not events:
            break
    if state.seq == began:
        return _Answer(seq=began)
    content, created = packed(state), question.created
    snapshot = kvs.keep_snapshot(name, state.seq, snapshot_format(), question.term, content, created=created)
    return _Answer(seq=snapshot.seq, size=snapshot.size)


def main() -> None:
    """Answer one request."""
    os.nice(_NICE)
    gc.disable()  # folds have no cycles, and this process ends soon
    question = SnapshotQuestion.model_validate_json(sys.stdin.buffer.read())
    try:
        answer = _answer(question)
    except CerebroError as error:
        answer = _Answer(problem=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - told to the controller, and in full in its log
        traceback.print_exc()
        answer = _Answer(problem=f"{type(error).__name__}: {error}")
    sys.stdout.write(answer.model_dump_json())


if __name__ == "__main__":
    main()

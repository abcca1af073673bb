"""The fork server of user code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cerebro.contract.base import Contract
from cerebro.contract.parallel_plans import SINGLE
from cerebro.runtime.volumes import Volumes
from cerebro.worker.child import task_loop
from cerebro.worker.child.rank_page import PAGE, RankPage
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import Done, Failed, Protocol, Ranks, Ready, Run
from tests.trial_runner.sub_epochs import task_of
from tests.waiting import HANG_S
from tests.worker.agent import ending_handler

pytestmark = pytest.mark.processes


class Ended(Contract):
    """Sent by `ending_handler` as its process exits."""


ENDING_CHILD = Protocol[Ready | Done | Failed | Ended](Ready, Done, Failed, Ended)

ORPHANED = """
import os, signal, time
from cerebro.worker.child import fork_server

fork, own = os.fork, os.getpid()

def to_an_orphan():
    if fork():
        os.kill(own, signal.SIGKILL)
    while os.getppid() == own:
        time.sleep(0.001)
    return 0

os.fork = to_an_orphan
fork_server.serve(lambda unread: bytes(os.write(1, b"worked") * 0))
"""


def test_a_process_whose_parent_died_as_it_was_forked_does_nothing() -> None:
    """Its parent-death signal refers to the new parent, so it must exit itself."""
    # The pipe ends when the last process that holds it exits.
    found = subprocess.run([sys.executable, "-c", ORPHANED], capture_output=True, timeout=HANG_S, check=False)
    assert found.stdout == b""


@pytest.mark.parametrize(
    ("has_failed", "ranks", "expected"),
    [(False, 1, ["Ended", "Done"]), (True, 1, ["Ended", "Failed"]), (False, 2, ["Ended", "Done"])],
)
def test_measurements_are_sent_after_their_process_has_ended(
    has_failed: bool, ranks: int, expected: list[str], tmp_path: Path
) -> None:
    """The next forked process sends it, so the device is free by then."""
    assert _said(tmp_path, has_failed=has_failed, ranks=ranks) == expected


def test_a_rank_reports_its_failure_before_it_ends(tmp_path: Path) -> None:
    """Otherwise the others' lost connections would be reported first."""
    assert _said(tmp_path, has_failed=True, ranks=2) == ["Failed", "Ended"]


def _said(folder: Path, *, has_failed: bool, ranks: int) -> list[str]:
    """Return a child's messages about a trial and its exit, in order."""
    volumes = Volumes(**dict.fromkeys(Volumes.__dataclass_fields__, folder))
    hyperparams = {"batch_size": 8} | ({"fails": 1} if has_failed else {})
    body = task_of(SINGLE, 8).model_copy(update={"hyperparams": hyperparams})
    rank_group = None
    if ranks > 1:
        RankPage.make(folder / PAGE, ranks)
        rank_group = Ranks(rank=0, size=ranks, folder=folder)
    run = Run(
        body=body,
        attempt=1,
        codes={},
        log=folder / "log",
        received_at=time.monotonic(),
        ranks=rank_group,
    )
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", task_loop.__name__, "--channel", str(theirs.fileno())]
    command += ["--handler", ending_handler.__name__, "--cores", "1"]
    with (
        ours,
        subprocess.Popen(
            command, env=os.environ | volumes.as_environment(), pass_fds=[theirs.fileno()]
        ) as process,
    ):
        theirs.close()
        channel = Channel(ours, ENDING_CHILD)
        channel.send(run)
        said: list[str] = []
        while len(said) < 2 and (found := channel.receive()) is not None:
            said += [type(found).__name__] if not isinstance(found, Ready) else []
        process.kill()
    return said

"""Runs continue without their client."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.harness import DEADLINE_S, Lab

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

FIT = """
import sys
from cerebro import Experiment
from tests.e2e.specs import TinyTraining
Experiment.attach(sys.argv[1]).run_fit(
    TinyTraining(gate=int(sys.argv[2]), holds=[("a", 1)]), {"tag": ["a", "b"], "lr": 0.01, "batch_size": 5},
    epochs=2, metric="accuracy", mode="max")
"""

WATCH = """
import sys
from cerebro import Experiment
experiment = Experiment.attach(sys.argv[1])
run = experiment.watch()
print(run.id, run.state, len(experiment.result().leaderboard()))
"""


@contextmanager
def client(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that behaves like a notebook's kernel; end it afterwards."""
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[bytes], word: bytes) -> None:
    """Read a client's stderr until `word` appears."""
    assert process.stderr is not None
    received, deadline = b"", time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while word not in received:
            assert selector.select(deadline - time.monotonic()), f"no {word!r} in {received!r}"
            read = os.read(process.stderr.fileno(), 4096)
            assert read, f"the client ended: {received!r}"
            received += read


@pytest.mark.parametrize("ending", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_outlives_its_client(lab: Lab, prepared: str, ending: signal.Signals) -> None:
    """The client is killed or interrupted. Another one attaches and sees the progress and the result."""
    experiment = lab.attach(prepared)
    with client(FIT, prepared, str(lab.gate.port)) as first:
        lab.gate.knock()
        first.send_signal(ending)
        _, complaints = first.communicate(timeout=DEADLINE_S)
        assert first.returncode != 0
        last_line = b"".join(complaints.splitlines()[-1:])
        assert (b"continues in the cluster" in last_line) == (ending is signal.SIGINT)
    active = experiment.state().active_run()
    assert active is not None
    with client(WATCH, prepared) as second:
        read_until(second, active.id.encode())
        lab.gate.open()
        said, complaints = second.communicate(timeout=DEADLINE_S)
        assert said.decode().split() == [active.id, "finished", "2"], complaints.decode()
    lab.check(experiment, active.id)

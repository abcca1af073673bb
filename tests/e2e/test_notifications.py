"""Notifications and `wait_limit` on a real cluster, with a local web server as receiver."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from cerebro import Limits
from cerebro.cli.program import main
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyTraining
from tests.http_server import HttpServer
from tests.waiting import until

pytestmark = pytest.mark.slow


class Mailbox(HttpServer):
    """Keeps the titles of received messages; refuses the first `num_refusals` ones."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, Any]] = []
        self.num_refusals = 1
        self.address = f"json://ann:pass9word@127.0.0.1:{self.server_port}/path0secret"

    @property
    def titles(self) -> list[str]:
        return [each["title"] for each in self.received]


class _Handler(BaseHTTPRequestHandler):
    server: Mailbox

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_refused, self.server.num_refusals = self.server.num_refusals > 0, self.server.num_refusals - 1
        if not is_refused:
            self.server.received.append(content)
        self.send_response(500 if is_refused else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_run_reports_pause_and_end_once_each_although_the_controller_is_killed(
    own_lab: MakeLab, mailbox: Mailbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """The receiver refuses the first message, the workers are away longer than `wait_limit`, the controller ends."""
    lab = own_lab(workers=1)
    assert main(["notify", "add", mailbox.address, "--for", "finished,paused"]) == 0
    target = capsys.readouterr().out.split()[0]
    assert main(["notify", "test", target]) == 1
    assert "error=500" in capsys.readouterr().err
    assert main(["notify", "test", target]) == 0
    assert mailbox.titles == ["Cerebro: test"]

    experiment = lab.prepared()
    until(
        lambda: lab.kvs.notifications().statuses[target].sent == 2,
        "the stored result of the message about etl-1",
    )
    lab.kill("controller")
    lab.process("controller")  # a new one
    lab.recovered()
    supervisor = lab.info().supervisor.pid
    lab.send(supervisor, signal.SIGSTOP)  # it would restart the worker
    lab.send("worker-0", signal.SIGSTOP)
    running = lab.fit(experiment, TinyTraining(), tags="a", limits=Limits(wait_limit="1s"))
    until(lambda: len(mailbox.titles) == 3, "the message about the pause")
    assert "waited for workers longer than its wait_limit of 1 s" in experiment.status()
    lab.send("worker-0", signal.SIGCONT)
    lab.send(supervisor, signal.SIGCONT)
    until(lambda: not lab.kvs.workers()[0].is_lost, "the worker's return")
    assert main(["resume", experiment.name]) == 0
    assert lab.result(running, experiment).failures() == {}

    until(
        lambda: lab.kvs.notifications().statuses[target].sent == 4,
        "the stored result of the message about fit-1",
    )
    assert mailbox.titles == [
        "Cerebro: test",
        f"Cerebro: etl-1 of {experiment.name} has finished",
        f"Cerebro: fit-1 of {experiment.name} is paused",
        f"Cerebro: fit-1 of {experiment.name} has finished",
    ]
    assert mailbox.received[3]["message"].startswith("best model: m00 of fit-1, loss ")
    capsys.readouterr()
    assert main(["notify", "list"]) == 0
    listed = capsys.readouterr().out
    logs = "".join(path.read_text() for path in lab.home.logs.glob("*.log"))
    assert f"{target}  json://127.0.0.1/...  all runs" in listed
    for secret in ("pass9word", "path0secret"):
        assert secret not in listed
        assert secret not in logs
    assert main(["notify", "remove", target]) == 0

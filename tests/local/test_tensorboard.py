"""The access guard in front of TensorBoard, with a fake app and with the real program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from cerebro.local import tensorboard
from cerebro.local.supervision import processes
from cerebro.local.supervision.processes import MARKER
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.web import tickets
from cerebro.runtime.web.tickets import LASTS_S, Kind
from controller.projections.event_file import EventFile, Scalar
from tests.servers import first_answer, reserved_port
from tests.waiting import HANG_S, until

KEY, PAGE, NOW = tickets.key_of("the token"), "http://127.0.0.1:7080", 1_000_000.0


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(path: str = "/", at: float = NOW, host: str = "127.0.0.1:6006", **more: str) -> Answer:
    """GET from the guarded app, which answers "everything"."""
    found: list[Any] = []

    def app(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"everything"]

    route, _, query = path.partition("?")
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": route, "QUERY_STRING": query, "HTTP_HOST": host, "SERVER_PORT": "6006",
    }  # fmt: skip
    guarded = tensorboard.guarded(app, key=KEY, page=PAGE, clock=lambda: at)
    body = b"".join(guarded({**environ, **more}, lambda *answer: found.extend(answer)))
    return Answer(int(found[0].split()[0]), dict(found[1]), body)


def admitted(at: float = NOW) -> str:
    """Return the cookie that a browser gets for a ticket."""
    answer = ask(f"/?ticket={tickets.issue(KEY, Kind.TICKET, at)}", at, HTTP_ACCEPT="text/html")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    assert "SameSite=Lax" in answer.headers["Set-Cookie"]
    return answer.headers["Set-Cookie"].partition(";")[0]


@pytest.mark.parametrize(
    "path", ["/", "/data/runs", "/?ticket=1.2", "/data/plugin/hparams/experiment", "//live"]
)
def test_a_request_without_a_pass_is_refused(path: str) -> None:
    """A program gets instructions to authenticate; a browser is redirected to the sign-in page."""
    answer = ask(path)
    assert (answer.status, b"everything" in answer.body) == (401, False)
    answer = ask(path, host="localhost:6006", HTTP_ACCEPT="text/html,*/*")
    assert (answer.status, answer.headers["Location"]) == (303, "http://localhost:7080/tensorboard")


def test_a_ticket_is_changed_into_a_pass() -> None:
    """The cookie works next to others, and the redirect removes the ticket from the URL."""
    cookie = admitted()
    assert ask("/data/runs", HTTP_COOKIE=f'cerebro-7080="x; y"; {cookie}').body == b"everything"
    assert ask("/data/runs", HTTP_COOKIE=cookie.replace("6006", "6007")).status == 401


def test_tickets_and_passes_expire() -> None:
    """A ticket expires after a minute because browser histories and logs keep it."""
    cookie = admitted()
    assert ask(HTTP_COOKIE=cookie, at=NOW + LASTS_S[Kind.PASS] - 1).status == 200
    assert ask(HTTP_COOKIE=cookie, at=NOW + LASTS_S[Kind.PASS]).status == 401
    ticket = tickets.issue(KEY, Kind.TICKET, NOW)
    assert ask(f"/?ticket={ticket}", at=NOW + LASTS_S[Kind.TICKET]).status == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:6006",
        "127.0.0.1.evil.example",
        "",
        "10.0.0.7:6006",
        "[",
        "[::1",
        "[x]",
        "//",
        "127.0.0.1/x",
    ],
)
def test_other_host_names_are_refused(host: str) -> None:
    """Prevents DNS rebinding: even a valid pass is refused under a foreign host name."""
    assert ask(host=host, HTTP_COOKIE=admitted()).status == 421


@given(given=st.text(), kind=st.sampled_from(Kind), other=st.sampled_from(Kind), now=st.floats(0, 2e9))
def test_only_issued_tickets_and_passes_are_valid(given: str, kind: Kind, other: Kind, now: float) -> None:
    """Arbitrary text, a ticket used as a pass, and another cluster's pass are refused."""
    assert not tickets.holds(KEY, kind, given, now)
    issued = tickets.issue(KEY, kind, now)
    assert tickets.holds(KEY, other, issued, now) == (kind is other)
    assert not tickets.holds(tickets.key_of("another"), kind, issued, now)
    assert not tickets.holds(KEY, kind, f"9{issued}", now)


def listened_on(folder: Path) -> set[int]:
    """Return the network ports on which processes of the home `folder` listen."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    ports = {f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    links = [link for found in processes.marked(folder) for link in Path(f"/proc/{found.pid}/fd").iterdir()]
    return {
        ports[str(link.readlink())] for link in links if link.is_symlink() and str(link.readlink()) in ports
    }


@pytest.fixture(params=["where namespaces may be made", "where they may not"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Start the real TensorBoard as the local cluster does, with one logged value."""
    _write_events(tmp_path / "logs")
    with reserved_port() as port:
        yield from _served(port, tmp_path, may_have_namespace=request.param == "where namespaces may be made")


def _served(port: int, tmp_path: Path, *, may_have_namespace: bool) -> Iterator[str]:
    variables = {
        tensorboard.KEY: KEY.hex(),
        tensorboard.PAGE: PAGE,
        "TMPDIR": str(tmp_path),
        MARKER: str(tmp_path),
    }
    arguments = ["--logdir", str(tmp_path / "logs"), "--port", str(port), "--reload_interval", "1"]
    program = "import sys; from cerebro.local import network_namespace, tensorboard; "
    if not may_have_namespace:
        program += "network_namespace.private_network = lambda: False; "
    command = with_parent_death_signal(
        [sys.executable, "-P", "-c", f"{program} tensorboard.main()", *arguments]
    )
    process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    assert first_answer(f"http://127.0.0.1:{port}/live", process).status == 200
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
    for left in processes.marked(tmp_path):
        assert processes.wait_gone(left, HANG_S)


def _write_events(folder: Path) -> None:
    folder.mkdir()
    file = EventFile(folder / "events.out.tfevents.1")
    file.write([Scalar(tag="loss", value=0.5, step=1, time=1.0)])
    file.close()


@pytest.mark.slow
@pytest.mark.processes
def test_the_real_tensorboard_requires_authentication(address: str, tmp_path: Path) -> None:
    """Both the data and the page are protected, and no other port is open."""
    port = int(address.rpartition(":")[2])
    with urllib3.PoolManager() as http:

        def get(path: str, **headers: str) -> urllib3.BaseHTTPResponse:
            return http.request("GET", address + path, headers=headers, redirect=False)

        assert get("/data/runs").status == 401
        assert get("/", Accept="text/html").headers["Location"] == f"{PAGE}/tensorboard"
        assert get("/data/runs", Authorization="Bearer the token", Host="evil.example").status == 421
        known = "Bearer the token"
        until(
            lambda: get("/data/runs", Authorization=known).json() == ["."], "TensorBoard reads what is there"
        )
        ticket = tickets.issue(KEY, Kind.TICKET, time.time())
        cookie = get(f"/?ticket={ticket}", Accept="text/html").headers["Set-Cookie"].partition(";")[0]
        assert re.search(b"<title>TensorBoard</title>", get("/", Cookie=cookie, Accept="text/html").data)
    assert listened_on(tmp_path) == {port}

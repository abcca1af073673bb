"""A controller that stops resigns, so a standby leads before the lease expires."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.contract.records import SizeRequest
from cerebro.runtime.kvs.client import KvsClient
from controller.loop.leadership import resign
from tests.kvs_api.real import TOKEN
from tests.waiting import HANG_S, until

LONG_S = 3600.0


def test_a_controller_that_resigns_leads_no_more(kvs: KvsClient) -> None:
    """The next leader has a new term."""
    term = kvs.lead("first", LONG_S, process="a").term
    resign(kvs.address, TOKEN, "first", "a")
    assert kvs.lead("second", LONG_S).term == term + 1


def test_resigning_does_not_wait_for_an_unavailable_store() -> None:
    """The lease then expires by itself."""
    resign("http://127.0.0.1:1", TOKEN, "first", "a")


def is_answered(kvs: KvsClient) -> bool:
    request = kvs.size_request()
    return request is not None and bool(request.problem)


@pytest.mark.processes
def test_a_controller_resigns_after_sigterm(kvs: KvsClient, tmp_path: Path) -> None:
    """After SIGTERM, a standby leads as soon as the process exits."""
    kvs.request_size(SizeRequest(workers=2))
    environment = {
        **os.environ,
        "CEREBRO_SERVER": kvs.address,
        "CEREBRO_TOKEN": TOKEN,
        "CEREBRO_VOLUMES": str(tmp_path),
        "CEREBRO_HOLDER": "first",
    }
    with subprocess.Popen([sys.executable, "-P", "-m", "controller"], env=environment) as process:
        try:
            # Only the leader answers commands.
            until(lambda: is_answered(kvs) or process.poll() is not None, "the controller leads")
            assert process.poll() is None
            assert kvs.lead("second", LONG_S).term == 0
        finally:
            process.terminate()
            process.wait(HANG_S)
    assert kvs.lead("second", LONG_S).term > 0

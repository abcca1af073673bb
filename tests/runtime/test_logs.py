"""Log records are single JSON lines with context fields and without secrets."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cerebro.runtime import logs

SECRET = 'a"token\\with-what-JSON-escapes'


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Capture log records and restore the root logger afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def set_up(stream: io.StringIO, form: str = "json", **constant: str) -> logging.Logger:
    logs.set_up("worker", {"CEREBRO_LOG_FORMAT": form}, secrets=(SECRET, ""), stream=stream, **constant)
    return logging.getLogger("cerebro.somewhere")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_of_json(stream: io.StringIO) -> None:
    """The line has the UTC time, level, service, logger and message, even if the message has line breaks."""
    set_up(stream).warning("two\nlines of %s", "Ω <script>")
    (line,) = lines(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "service": "worker",
        "logger": "cerebro.somewhere",
        "message": "two\nlines of Ω <script>",
    }


def test_fields_describe_the_context_of_a_record(stream: io.StringIO) -> None:
    """Process, thread and record each add fields; the innermost value wins, and other fields are omitted."""
    log = set_up(stream, worker="worker-0")
    with logs.about(experiment="e", run="fit-1", model=None, attempt=1):
        with logs.about(attempt=2):
            log.info("inner", extra={"sub_epoch": "fit-1/train/m0/e1/p0", "size": 3})
        log.info("outer", extra={"worker": "worker-9"})
    log.info("after")
    inner, outer, after = lines(stream)
    assert (inner["experiment"], inner["attempt"], inner["sub_epoch"]) == ("e", 2, "fit-1/train/m0/e1/p0")
    assert inner["worker"] == "worker-0"
    assert not {"model", "size"} & inner.keys()
    assert (outer["attempt"], outer["worker"]) == (1, "worker-9")
    assert after.keys() == {"time", "level", "service", "logger", "message", "worker"}


@pytest.mark.parametrize("form", logs.FORMATS)
def test_a_secret_is_in_no_line(form: str, stream: io.StringIO) -> None:
    """Secrets are hidden in the message, its arguments, fields and exceptions, plain or JSON-escaped."""
    log = set_up(stream, form)
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        log.exception("Authorization: Bearer %s", SECRET, extra={"sub_epoch": SECRET})
    text = stream.getvalue()
    assert text.count("[hidden]") >= 3
    assert SECRET not in text
    assert json.dumps(SECRET)[1:-1] not in text


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "DB_PASSWORD",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_secrets_of_the_environment_are_in_no_line(name: str, stream: io.StringIO) -> None:
    """Variable names identify secrets, so a library's message that quotes one is redacted too."""
    logs.set_up("worker", {name: "wJalrXUtnFEMI"}, stream=stream)
    logging.getLogger("boto").info("signed with %s", "wJalrXUtnFEMI")
    assert stream.getvalue().endswith("signed with [hidden]\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7"),
        ("TOKENIZERS_PARALLELISM", "some-value"),
        ("USE_TOKEN", "true"),
    ],
)
def test_values_that_are_no_secrets_stay(name: str, content: str, stream: io.StringIO) -> None:
    """Paths, identities and switches stay visible, or the lines would be useless."""
    logs.set_up("worker", {name: content}, stream=stream)
    logging.getLogger("boto").info("it is %s", content)
    assert stream.getvalue().endswith(f"it is {content}\n")


def test_a_secret_that_holds_another_is_hidden_whole(stream: io.StringIO) -> None:
    logs.set_up("worker", {"A_TOKEN": "abcdefghij", "B_TOKEN": "abcdefgh"}, stream=stream)
    logging.getLogger("x").info("abcdefghij")
    assert stream.getvalue().endswith(" [hidden]\n")


_STARTED = """
import runpy, sys
for module in ("kvs_api", "controller", "dispatcher", "cerebro.worker.agent"):
    sys.argv = [module, *(["--handlers", "tests.worker.agent.fake_handler"] if "worker" in module else [])]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print(module, "|", end.code)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_services_refuse_an_unknown_format() -> None:
    """The service prints one sentence before it does anything else."""
    environment = {
        "PATH": "/bin",
        "CEREBRO_TOKEN": "t",
        "CEREBRO_WORKER": "w",
        "CEREBRO_SERVER": "http://127.0.0.1:1",
        "CEREBRO_LOG_FORMAT": "xml",
    }
    # All run in one process because they share most imports.
    done = subprocess.run(
        [sys.executable, "-c", _STARTED], env=environment, capture_output=True, text=True, check=False
    )
    said = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert list(said) == ["kvs_api", "controller", "dispatcher", "cerebro.worker.agent"], done.stderr
    assert all("CEREBRO_LOG_FORMAT is 'xml'" in sentence for sentence in said.values()), said
    assert done.stderr == ""

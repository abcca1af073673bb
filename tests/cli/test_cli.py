"""The command line with a cluster of idle services."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from cerebro import cli
from cerebro.cli.administration import cluster_status as cli_status
from cerebro.local import cluster
from cerebro.local.home import find_running
from tests.local.conftest import MakeCluster
from tests.local.fakes import Fake, FakeCluster


@pytest.fixture
def fake(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Make ``cerebro up`` start a fake cluster at the home in the environment."""
    found = make_cluster(
        Fake(name="one", program="import signal; print('hello', flush=True); signal.pause()")
    )
    monkeypatch.setenv("CEREBRO_HOME", str(found.home.path))
    monkeypatch.setattr(cli_status, "_TIMEOUT_S", 0.0)
    real = cluster.start
    monkeypatch.setattr(cluster, "start", lambda *a, **k: real(*a, **{"supervisor": found.command} | k))
    return found


def test_up_prints_the_addresses_and_the_path_of_the_token(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token itself is not printed."""
    assert cli.main(["up", "--workers", "3"]) == 0
    said = capsys.readouterr().out
    info = fake.info()
    assert info.workers == 3
    assert info.tensorboard is not None
    assert {info.dispatcher, info.tensorboard} <= set(said.split())
    assert f"cat {fake.home.token_file}" in said
    assert info.token() not in said


def test_a_second_up_joins_the_cluster_and_down_ends_it(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second `down` finds no cluster."""
    assert cli.main(["up", "--no-tensorboard"]) == 0
    first = fake.info()
    assert first.tensorboard is None
    assert cli.main(["up"]) == 0
    assert fake.info() == first
    assert cli.main(["down"]) == 0
    assert find_running(fake.home) is None
    assert cli.main(["down"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"The cluster at {fake.home.path} has ended.",
        f"No cluster runs at {fake.home.path}.",
    ]


def test_status_shows_services_while_the_store_is_unavailable(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process, memory, uptime and restarts per service; the store's data is shown as unknown."""
    fake.start()
    fake.restarted("one", fake.kill("one"))
    pid = fake.process("one").pid
    assert cli.main(["status"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"^  one +ready +{pid} +\d+ [kM]B +\d+ s +1$", said, re.MULTILINE)
    assert re.search(r"^  supervisor +ready", said, re.MULTILINE)
    assert "Workers and experiments are not known: kvs_api at" in said


def test_status_without_a_cluster_prints_one_line(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """An expected error is one line on stderr with exit status 1, without a traceback."""
    assert cli.main(["status"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"cerebro: no local cluster runs at {fake.home.path}: start one with `cerebro up`\n"
    )


def test_logs_can_be_followed(fake: FakeCluster) -> None:
    """-f also shows later output, across restarts."""
    fake.start()
    fake.wrote("one", "hello")
    command = [sys.executable, "-m", "cerebro.cli", "logs", "one", "-f", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "hello\n"
        fake.kill("one")
        assert follower.stdout.readline().startswith("--- started")
        assert follower.stdout.readline() == "hello\n"
        follower.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["up", "--workers", "0"],
        ["up", "--workers", "x"],
        ["up", "--devices", "0"],
        ["up", "--timeout", "nan"],
        ["replay", "digits", "--tolerance", "nan"],
        ["replay", "digits", "--tolerance", "-1"],
        ["replay", "digits", "--tolerance", "inf"],
        ["selftest", "--timeout", "x"],
        ["dance"],
    ],
)
def test_wrong_arguments_print_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 2, and the line points to the help."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cerebro")
    assert line.endswith("--help")


def test_version_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"cerebro {cluster.version()}\n"


@pytest.mark.commands
def test_help_loads_no_heavy_library() -> None:
    """A command imports its libraries when it runs, so help is fast."""
    program = (
        "import sys\nfrom cerebro import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "print('\\n', *sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = set(loaded.stdout.splitlines()[-1].split())
    assert not {"torch", "numpy", "pandas", "pyarrow", "urllib3", "cerebro.local.cluster"} & names

"""`examples/digits.py`, the main job of `make run`, as a process with its own home."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from cerebro import Experiment
from cerebro.contract.events import TaskAssigned
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, find_running
from cerebro.local.supervision import processes
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
LEFT = {"leaderboard.csv", "history.csv", "sub_epochs.csv", "predictions.csv", "report.html"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of the job."""

    user: Path
    output: Path

    @property
    def home(self) -> ClusterHome:
        """Return the default home of the cluster."""
        return ClusterHome(self.user / ".cerebro")

    def command(self) -> list[str]:
        """Return a short job: every model trains one epoch, and the data is in the default place."""
        options = ["--epochs", "1", "--output", str(self.output)]
        return [sys.executable, str(ROOT / "examples" / "digits.py"), *options]

    def environment(self) -> dict[str, str]:
        """Return the caller's environment with this home and no other cluster."""
        own = {name: text for name, text in os.environ.items() if not name.startswith("CEREBRO_")}
        return own | {"HOME": str(self.user), "PYTHONUNBUFFERED": "1"}

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the job until it exits."""
        return subprocess.run(
            self.command(),
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=4 * HANG_S,
            check=False,
        )


def _make(folder: Path) -> Iterator[Place]:
    place = Place(user=folder, output=folder / "out")
    yield place
    cluster.stop(place.home.path)
    assert processes.marked(place.home.path) == ()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Shared by all runs of this file, like a user's folder."""
    yield from _make(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def first(place: Place) -> subprocess.CompletedProcess[str]:
    """The first run, which starts the cluster."""
    return place.run()


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[Place]:
    """For a test that starts its own cluster."""
    yield from _make(tmp_path)


@pytest.mark.slow
@pytest.mark.processes
def test_the_job_writes_tables_and_a_report_and_prints_their_places(
    place: Place, first: subprocess.CompletedProcess[str]
) -> None:
    """One command starts a cluster, trains eight models and leaves results; the cluster keeps running."""
    assert first.returncode == 0, first.stderr[-3000:]
    assert {path.name for path in place.output.iterdir()} == LEFT
    assert all(path.stat().st_size > 0 for path in place.output.iterdir())

    leaderboard = pd.read_csv(place.output / "leaderboard.csv")
    assert list(leaderboard["state"]) == ["finished"] * 8
    assert leaderboard["accuracy"].is_monotonic_decreasing
    history = pd.read_csv(place.output / "history.csv")
    assert sorted(zip(history["model"], history["split"], strict=True)) == [
        (f"m0{number}", split) for number in range(8) for split in ("train", "valid")
    ]
    predictions = pd.read_csv(place.output / "predictions.csv", index_col="id")
    assert len(predictions) == 300
    labels = pd.read_csv(place.home.path / "examples" / "digits" / "test.csv", index_col="id")["label"]
    assert (predictions["digit"] == labels.reindex(predictions.index)).mean() > 0.8

    info = find_running(place.home)
    assert info is not None
    assert info.dispatcher in first.stdout
    assert info.tensorboard is not None
    assert info.tensorboard in first.stdout
    assert re.search(
        r"^  sign in +http://\S+/sign-in\?next=/experiments/digits#[\w-]{43}$", first.stdout, re.M
    )
    # Printed before preprocessing, so a user can watch, and at the end.
    assert first.stdout.index(info.dispatcher) < first.stdout.index("preprocessed")
    assert first.stdout.count(info.dispatcher) == 4  # the page and a sign-in link, twice


@pytest.mark.slow
@pytest.mark.processes
def test_a_second_run_repeats_no_preprocessing(
    place: Place, first: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same spec, locators, seed and fraction give the same data set, so no ETL task starts."""
    assert first.returncode == 0, first.stderr[-3000:]
    second = place.run()
    assert second.returncode == 0, second.stderr[-3000:]

    monkeypatch.setenv("CEREBRO_HOME", str(place.home.path))
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    experiment = Experiment.attach("digits")
    events = experiment.connection.kvs.events("digits")
    given = [event.task for event in events if isinstance(event, TaskAssigned)]
    assert {task.split("/")[0] for task in given if "/etl/" in task} == {"etl-1"}
    assert {"fit-1", "fit-2"} <= {task.split("/")[0] for task in given}


@pytest.mark.slow
@pytest.mark.processes
def test_readme_python_runs_on_the_jobs_output(
    place: Place, first: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """README's Python trains on the job's data unchanged."""
    assert first.returncode == 0, first.stderr[-3000:]
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    script = tmp_path / "readme.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=place.environment(),
        cwd=tmp_path,
        timeout=4 * HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "accuracy" in done.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_ctrl_c_ends_the_cluster_that_the_job_started(own_place: Place) -> None:
    """Interrupted during training, the job ends the cluster that it started."""
    with subprocess.Popen(
        own_place.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=own_place.environment(),
    ) as job:
        assert job.stdout is not None
        said: list[str] = []
        for line in job.stdout:
            said.append(line)
            if re.search(r"^fit-1:.*\b[1-9]\d?/16\b", line):  # a line may report several sub-epochs
                break
        assert find_running(own_place.home) is not None, "".join(said[-20:])
        job.send_signal(signal.SIGINT)
        rest, _ = job.communicate(timeout=HANG_S)
    assert job.returncode == 130, rest[-3000:]
    assert "Traceback" not in rest
    assert find_running(own_place.home) is None
    assert processes.marked(own_place.home.path) == ()

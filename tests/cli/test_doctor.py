"""`cerebro doctor` finds each common problem and names a fix."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cerebro import cli
from cerebro.cli import doctor
from cerebro.cli.doctor import (
    Case,
    Finding,
    Verdict,
    checkpoints,
    cluster,
    installation,
    logs,
    machine,
    settings,
)
from cerebro.contract.records import (
    ExperimentRecord,
    ExperimentSummary,
    Locator,
    Locators,
    WorkerRecord,
    WorkerStatus,
)
from cerebro.contract.stored.health import HealthAnswer, Quarantine, WorkerHealth
from cerebro.contract.stored.segments import Segment, SegmentsAnswer
from cerebro.errors import NotFoundError
from cerebro.local import requirements
from cerebro.local.home import ClusterHome, ClusterInfo
from cerebro.local.supervision import processes
from cerebro.runtime.isolation import landlock
from cerebro.state.models.final_checkpoints import final_files
from tests.local.conftest import MakeCluster
from tests.local.fakes import Fake
from tests.state.stories import Story


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Case]:
    """Make an existing home without a cluster."""

    def make(workers: int = 1, home: Path | None = None, **environment: str) -> Case:
        place = ClusterHome(home or tmp_path / "home")
        if home is None:
            place.create()
        return Case(home=place, environment=environment, workers=workers, info=None)

    return make


@pytest.mark.processes
@pytest.mark.slow
def test_a_good_machine_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With free space no check fails, and the check creates no home."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 40))
    home = tmp_path / "home"
    assert cli.main(["doctor", "--home", str(home), "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert " 0 failed" in said
    assert not home.exists()


def test_a_failed_check_sets_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One failed check is enough; its line names the fix."""
    monkeypatch.setattr(doctor, "CHECKS", {"token": cluster.token})
    home = ClusterHome(tmp_path)
    home.create()
    home.token_file.chmod(0o644)
    assert cli.main(["doctor", "--home", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"fail  token        other users can read {home.token_file}",
        f"                   -> chmod 600 {home.token_file}",
        "1 checks: 1 failed, 0 with warnings.",
    ]


# --- what is installed --------------------------------------------------------------------------


def test_missing_packages_are_named(case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix is the command for this Python."""
    monkeypatch.setattr(requirements, "PACKAGES", ("json", "no_such_package"))
    found = installation.packages(case())
    assert (found.verdict, "no_such_package" in found.message) == (Verdict.FAIL, True)
    assert "-m pip install" in found.remedy


@pytest.mark.parametrize(
    ("cuda", "gpus", "driver", "verdict"),
    [
        ("", 0, "", Verdict.OK),
        ("12.8", 0, "", Verdict.OK),
        ("12.8", 2, "570.1", Verdict.OK),
        ("", 0, "570.1", Verdict.WARN),
        ("12.8", 0, "470.1", Verdict.FAIL),
    ],
)
def test_torch_must_fit_the_driver(cuda: str, gpus: int, driver: str, verdict: Verdict) -> None:
    """A GPU that torch cannot use is reported before a long run on the CPU."""
    found = installation.judge_torch({"version": "2.13.0", "cuda": cuda, "gpus": gpus}, driver=driver)
    assert found.verdict is verdict
    assert bool(found.remedy) is (verdict is not Verdict.OK)


# --- the machine --------------------------------------------------------------------------------


def _worker(number: int, *, threads: int, cores: int = 2) -> WorkerStatus:
    record = WorkerRecord(
        worker=f"worker-{number}",
        incarnation="a",
        weight=1,
        cores=threads,
        machine_cores=cores,
        kinds=("train",),
        host="node-a",
    )
    return WorkerStatus(record=record, silent_s=1.0)


@pytest.mark.parametrize("is_quarantined", [False, True])
def test_quarantined_workers_are_named(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, is_quarantined: bool
) -> None:
    """With the reason and the release command."""
    mark = Quarantine(
        is_on=is_quarantined, reason="2 sub-epochs failed of its machine", by="controller", time=1.0
    )
    known = HealthAnswer(workers={"worker-1": WorkerHealth(quarantine=mark)})
    store = SimpleNamespace(
        workers=lambda: [_worker(number, threads=1) for number in (0, 1)], workers_health=lambda: known
    )
    monkeypatch.setattr(cluster, "remote_client", lambda environment: store)
    found = cluster.machines(case())
    assert found.verdict is (Verdict.WARN if is_quarantined else Verdict.OK)
    assert ("worker-1 is quarantined: 2 sub-epochs failed" in found.message) == is_quarantined


def test_quarantined_experiments_are_named(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the reason, and the command that ends the quarantine."""
    problem = SimpleNamespace(reason="event 7 is of a newer version")
    known = [
        SimpleNamespace(experiment=SimpleNamespace(name=name), unreadable=unreadable)
        for name, unreadable in (("digits", None), ("birds", problem))
    ]
    store = SimpleNamespace(experiments=lambda: known)
    monkeypatch.setattr(cluster, "remote_client", lambda environment: store)
    found = cluster.experiments(case())
    assert found.verdict is Verdict.WARN
    assert found.message == "birds is quarantined: event 7 is of a newer version"
    assert "cerebro restore" in found.remedy
    known.pop()
    assert cluster.experiments(case()).verdict is Verdict.OK


def test_a_full_volume_is_named(case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume may be on another disk than the home."""
    doctor_case = case()
    full = doctor_case.home.volumes / "checkpoints"
    full.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(machine, "_disk", lambda folder: int(folder == full))
    left = {full: 0}
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=left.get(path, 1 << 40)))
    found = machine.space(doctor_case)
    assert found.verdict is Verdict.FAIL
    assert f"free at {full}: there is no space" in found.message
    left.clear()
    assert machine.space(doctor_case).verdict is Verdict.OK


@pytest.mark.parametrize(("threads", "verdict"), [(1, Verdict.OK), (2, Verdict.WARN)])
def test_more_threads_than_cores_are_a_warning(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, threads: int, verdict: Verdict
) -> None:
    """For workers of a remote cluster; names the node and the chart's values."""
    workers = [_worker(number, threads=threads) for number in (0, 1)]
    monkeypatch.setattr(cluster, "remote_client", lambda _: SimpleNamespace(workers=lambda: workers))
    found = cluster.threads(case())
    assert found.verdict is verdict
    assert verdict is Verdict.OK or "4 threads on the 2 core(s) of node-a" in found.message
    assert verdict is Verdict.OK or "worker.cores" in found.remedy


def test_missing_final_checkpoints_are_named(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fix for the first one; an unreadable experiment does not hide the others."""
    doctor_case, story = case(), Story()
    story.fit(models=2)
    story.epoch(1)
    story.epoch(2)
    summaries = [SimpleNamespace(experiment=SimpleNamespace(name=n), unreadable=None) for n in ("bad", "one")]
    monkeypatch.setattr(checkpoints, "client", lambda info: SimpleNamespace(experiments=lambda: summaries))

    def load(kvs: object, name: str) -> object:
        if name == "bad":
            raise NotFoundError("gone")
        return story.state, None

    monkeypatch.setattr(checkpoints, "load_readable", load)
    assert "no local cluster runs" in checkpoints.final_checkpoints(doctor_case).message
    running = replace(doctor_case, info=SimpleNamespace())  # type: ignore[arg-type]
    found = checkpoints.final_checkpoints(running)
    assert found.verdict is Verdict.WARN
    assert "m00 of one/fit-1" in found.message
    assert "`cerebro clone one m00 --run fit-1`" in found.remedy
    for each in final_files(story.state):
        path = doctor_case.home.volumes / "checkpoints" / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("state")
    assert checkpoints.final_checkpoints(running) == Finding(
        Verdict.OK, "those of all finished models are there"
    )


def test_an_unwritable_folder_is_reported_by_one_check(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is checked without the file system's time."""
    denied = PermissionError(13, "Permission denied")
    for name in ("NamedTemporaryFile", "TemporaryFile"):
        monkeypatch.setattr(f"tempfile.{name}", Mock(side_effect=denied))
    assert machine.home_folder(case()).verdict is Verdict.FAIL
    assert machine.clock(case()).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("free", "verdict"), [(10**11, Verdict.OK), (10**9, Verdict.WARN), (10**6, Verdict.FAIL)]
)
def test_a_full_disk_is_found(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, free: int, verdict: Verdict
) -> None:
    """Checkpoints need space."""
    usage = type("usage", (), {"free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert machine.space(case()).verdict is verdict


def test_a_read_only_volume_is_found(case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with space may be mounted read-only."""
    usage = SimpleNamespace(free=10**12)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    checked = case()
    volume = checked.home.volumes / "metrics"
    volume.mkdir(parents=True, exist_ok=True)
    assert machine.space(checked).verdict is Verdict.OK
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != volume)
    found = machine.space(checked)
    assert found.verdict is Verdict.FAIL
    assert found.message == f"{volume} is not writable"


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "a"}, "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not"),
        ({"AWS_SECRET_ACCESS_KEY": "a"}, "AWS_SECRET_ACCESS_KEY is set, AWS_ACCESS_KEY_ID is not"),
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "does not begin with http://"),
        ({"AWS_ENDPOINT_URL": "http://localhost:x"}, "is no address"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}, "cannot be reached"),
    ],
)
def test_invalid_object_store_settings_are_reported(
    case: Callable[..., Case], environment: dict[str, str], words: str
) -> None:
    """Half a key pair, an invalid endpoint, or an endpoint that does not answer."""
    found = settings.object_store(case(**environment))
    assert (found.verdict, words in found.message) == (Verdict.FAIL, True)


# --- the cluster --------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.slow
def test_a_running_cluster_is_examined_service_by_service(make_cluster: MakeCluster) -> None:
    """A wrong service fails by name, and so does an inherited setting."""
    fake = make_cluster(Fake(name="dispatcher"), Fake(name="extra", required=False))
    info = fake.start()
    environment = {**os.environ, "AWS_REGION": "elsewhere"}
    found = dict(doctor.examine(fake.home, environment))
    assert found["cluster"].verdict is Verdict.OK
    assert (found["dispatcher"].verdict, found["dispatcher"].message.partition("), ")[2]) == (
        Verdict.FAIL,
        "but does not answer",
    )
    assert found["ports"].message.startswith(f"dispatcher {info.ports['dispatcher']}")
    assert found["s3"].message.endswith("different values of AWS_REGION")


def test_a_failed_start_is_remembered(case: Callable[..., Case]) -> None:
    """The reason is kept after the terminal has scrolled away."""
    asked = case()
    info = ClusterInfo(
        home=asked.home.path,
        state="failed",
        version="1",
        python="python",
        python_version="3.11.0",
        supervisor=processes.ProcessId(pid=1, started="before"),
        since=0.0,
        workers=1,
        ports={},
        socket=asked.home.socket,
        problem="one ended",
    )
    asked.home.write(info)
    found = cluster.running(asked)
    assert (found.verdict, found.message) == (Verdict.WARN, "the last start failed: one ended")


@pytest.mark.processes
def test_a_sandbox_that_the_kernel_does_not_support_is_reported(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sandbox is on, workers do not start; if it is off, it cannot be enabled. An invalid setting is named."""
    assert machine.sandbox(case(CEREBRO_SANDBOX="maybe")).verdict is Verdict.FAIL
    monkeypatch.setattr(landlock, "why_not_enforced", lambda: "the kernel has no Landlock")
    refused = machine.sandbox(case(CEREBRO_SANDBOX="on"))
    assert refused.verdict is Verdict.FAIL
    assert "the kernel has no Landlock: workers do not start" in refused.message
    off = machine.sandbox(case())
    assert (off.verdict, "could not be switched on: the kernel has no Landlock" in off.message) == (
        Verdict.OK,
        True,
    )
    monkeypatch.setattr(landlock, "why_not_enforced", lambda: "")
    monkeypatch.setattr(landlock, "abi_version", lambda: 1)
    old = machine.sandbox(case(CEREBRO_SANDBOX="on"))
    assert (old.verdict, "renames between folders" in old.message) == (Verdict.OK, True)


@pytest.mark.parametrize(("left", "verdict"), [(5_000, Verdict.OK), (150_000, Verdict.WARN)])
def test_the_lengths_of_logs_are_reported(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, left: int, verdict: Verdict
) -> None:
    """Database and files, and any log that is not trimmed, with a link to the documentation."""
    segment = Segment(
        first=1, last=20_000, began=1.0, ended=2.0, entries=20_000, size=400_000, sha256="0" * 64, file="a"
    )
    known = {"": SegmentsAnswer(remaining=3), "long": SegmentsAnswer(segments=(segment,), remaining=left)}
    record = ExperimentRecord(name="long", locators=Locators(train=Locator(metadata="m.csv")))
    summary = ExperimentSummary(experiment=record, last_seq=1, last_event=1.0, open_runs=())
    store = SimpleNamespace(experiments=lambda: (summary,), segments=known.__getitem__)
    monkeypatch.setattr(logs, "remote_client", lambda _: store)
    found = logs.logs(case())
    assert found.verdict is verdict
    assert f"{left + 3:,} events in the database, 20,000 in files of 0.4 MB" in found.message
    assert ("of long wait to be moved" in found.message) == (verdict is Verdict.WARN)

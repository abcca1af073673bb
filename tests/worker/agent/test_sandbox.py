"""The sandbox limits user code to the files of its own experiment and data set."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import ClusterError
from cerebro.runtime.isolation import landlock, metadata_guard, sandbox_settings
from cerebro.runtime.numeric_settings import check as check_settings
from cerebro.runtime.volumes import Volumes
from cerebro.spec import SubEpochSpec
from cerebro.worker.child import sandbox
from cerebro.worker.child.sandbox import Rights, Sandbox, Scope, common_folders, outside, rights_of
from tests.kvs_api.occupancy_contract import sub_epoch_body
from tests.small_volume import fill, small_volume
from tests.worker.agent.agents import Agents

needs_landlock = pytest.mark.skipif(
    bool(landlock.why_unavailable()), reason=f"not enforced here: {landlock.why_unavailable()}"
)
VOLUMES = Volumes(
    **{name: Path("/v", name) for name in ("shards", "shared", "checkpoints", "metrics", "code", "logs")}
)
COMMON = (Path("/tmp"), Path("/dev/shm"))
names = st.sampled_from(["one", "two", "three-x", "one.old"])
scopes = st.builds(Scope, experiment=names, dataset=names, work=st.sampled_from(["data", "models"]))
paths = st.lists(st.sampled_from("abc"), max_size=4).map(lambda parts: Path("/", *parts))


def files_of(scope: Scope) -> list[Path]:
    """List files of an experiment or data set, as handlers write them."""
    volumes = VOLUMES
    if scope.work == "data":
        return [
            volumes.partition(scope.dataset, "train", 0) / "shard",
            volumes.partition(scope.dataset, "valid", 0) / "shard",
            volumes.fitted(scope.dataset, "etl-1", 1),
            volumes.failed_rows(scope.dataset, "train", 0),
            volumes.downloads(scope.dataset, "train") / "0" / "object",
        ]
    return [
        volumes.model_checkpoints(scope.experiment, "fit-1", "m0") / "u0.pt",
        volumes.shared / "predictions" / scope.experiment / "predict-1" / "m0-0000.arrow",
    ]


def rights(scope: Scope) -> Rights:
    """Return the rights of a scope on the test's volumes."""
    return rights_of(scope, VOLUMES, COMMON)


@given(scopes, scopes)
def test_each_scope_writes_only_its_own_files(mine: Scope, other: Scope) -> None:
    """Each scope writes its own files only.

    Reading is limited in the same way, except for a model's training data.
    """
    held = rights(mine)
    assert all(held.may_write(path) and held.may_read(path) for path in files_of(mine))
    is_shared = mine.work == other.work and (
        mine.dataset == other.dataset if mine.work == "data" else mine.experiment == other.experiment
    )
    trains_on_it = mine.work == "models" and other.work == "data" and mine.dataset == other.dataset
    for path in files_of(other):
        assert held.may_write(path) == is_shared
        assert held.may_read(path) == (is_shared or trains_on_it)


@given(scopes)
def test_common_folders_are_available_to_all_scopes(scope: Scope) -> None:
    """Readable: programs, code, environments, metadata of the own data set, registered models.

    Writable: temporary folders. Code and metrics are read-only.
    """
    held = rights(scope)
    read = [Path("/usr/lib/x.so"), VOLUMES.archive("a") / "m.py", VOLUMES.environment("e") / "bin/python"]
    read.append(VOLUMES.metadata(scope.dataset, "train", 0))
    if scope.work == "models":
        read.append(VOLUMES.checkpoints / VOLUMES.registered("digits", 1, "model.pt"))
    assert all(held.may_read(path) for path in read)
    assert all(held.may_write(folder / "x") for folder in COMMON)
    assert held.may_write(VOLUMES.misc / "m" / "words.txt")
    assert held.may_write(VOLUMES.task_log(scope.experiment, "t", 1))
    for path in (
        VOLUMES.archive("a") / "m.py",
        VOLUMES.environment("e") / "x",
        VOLUMES.metrics / "x",
        Path("/etc/x"),
    ):
        assert not held.may_write(path)


@given(st.sets(paths, min_size=1, max_size=5), st.sets(paths, max_size=12))
def test_all_paths_except_closed_folders_are_allowed(closed: set[Path], more: set[Path]) -> None:
    """For any tree, no allowed path contains a closed folder, and each other file is allowed."""
    tree = {parent for path in (*closed, *more) for parent in (path, *path.parents)}
    found = list(
        outside(closed, lambda folder: sorted(p for p in tree if p.parent == folder and p != folder))
    )
    assert len(found) == len(set(found))
    leaves = {path for path in tree if not any(other.parent == path and other != path for other in tree)}
    for leaf in leaves:
        is_closed = any(leaf.is_relative_to(folder) for folder in closed)
        assert any(leaf.is_relative_to(path) for path in found) == (not is_closed)
    assert not any(folder.is_relative_to(path) for folder in closed for path in found)


def test_no_common_folder_opens_a_volume(tmp_path: Path) -> None:
    """A cache or temporary folder that contains a volume is excluded."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "home/.cache/v")})
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    home = {"HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "models"), "TORCH_HOME": "relative"}
    found = common_folders(home, temporary, [tmp_path / "more"], volumes)
    expected = [temporary, Path("/dev/shm"), tmp_path / "models", tmp_path / "more", tmp_path / "home/.nv"]
    assert {path.resolve() for path in expected} <= set(found)
    assert not any((tmp_path / "home/.cache/v/shards").resolve().is_relative_to(path) for path in found)


def test_wrong_settings_are_refused_before_the_start(tmp_path: Path) -> None:
    """`cerebro up` checks them too; a sandboxed worker refuses a folder that contains a volume."""
    for bad in ({"CEREBRO_SANDBOX": "yes"}, {"CEREBRO_SANDBOX_WRITABLE": "/a:b"}):
        with pytest.raises(ClusterError, match=r"expected .* of the chart"):
            check_settings(bad)
    assert not sandbox_settings.mode({})
    assert sandbox_settings.writable({"CEREBRO_SANDBOX_WRITABLE": "/a:/b:"}) == (Path("/a"), Path("/b"))


@needs_landlock
@pytest.mark.processes
def test_a_worker_with_an_ineffective_sandbox_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names world-writable volumes, a folder that contains a volume, or a kernel without Landlock."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "v")})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ClusterError, match="TMPDIR"):
        sandbox.check(volumes, ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    sandbox.check(volumes, (tmp_path / "more",))
    for folder in (tmp_path, tmp_path / "v/shared/mine"):
        with pytest.raises(ClusterError, match="CEREBRO_SANDBOX_WRITABLE has"):
            sandbox.check(volumes, (folder,))
    monkeypatch.setattr(landlock, "why_not_enforced", lambda: "the kernel has none")
    with pytest.raises(ClusterError, match="CEREBRO_SANDBOX is on, but the kernel has none"):
        sandbox.check(volumes, ())


def test_without_a_sandbox_no_task_is_refused(tmp_path: Path) -> None:
    held = Sandbox(VOLUMES, is_on=False)
    body = sub_epoch_body("fit-1/train/m00/e1/p0", None)
    bodies = [body.model_copy(update={"experiment": name}) for name in "ab"]
    for each in bodies:
        assert held.admits(each)
        held.enter(each)
    failure = Failure(kind=FailureKind.USER_ERROR, message="[Errno 13] Permission denied: '/etc/x'")
    assert held.explain(failure) is failure


@pytest.mark.processes
def test_a_full_folder_for_temporary_files_refuses_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python then names no such folder. Code that needs no temporary files still runs."""
    with small_volume(tmp_path / "temporary", "64k") as folder:
        fill(folder)
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(folder)])
        with pytest.raises(FileNotFoundError):
            tempfile.gettempdir()
        assert sandbox._temporary_folder() == folder


@pytest.fixture
def started(agents: Agents, tmp_path: Path) -> Agents:
    """A worker with an enabled sandbox."""
    (tmp_path / "temporary").mkdir()
    agents.start(CEREBRO_SANDBOX="on", TMPDIR=str(tmp_path / "temporary"), HOME=str(tmp_path / "nobody"))
    return agents


@needs_landlock
def test_user_code_cannot_read_or_write_foreign_files(started: Agents, tmp_path: Path) -> None:
    """Its own checkpoints and temporary files are writable.

    Other experiments' folders and system files give an error with the path, the sandbox and the setting.
    """
    other = tmp_path / "checkpoints/other/fit-1/m00/u00000.pt"
    other.parent.mkdir(parents=True)
    other.write_text("theirs")
    own_file = tmp_path / "checkpoints/one/note"
    for number, path in enumerate([own_file, tmp_path / "temporary/x", Path("/dev/null")]):
        assert isinstance(started.end_of(started.give(number, f"write {path}")), TaskCommitted)
    assert own_file.read_text() == "user code's"
    for number, do in enumerate([f"write {other}", f"write {tmp_path}/new", f"read {other}"], 10):
        kind, message = started.failure(started.give(number, do))
        assert kind is FailureKind.USER_ERROR
        assert f"The sandbox of this worker refused {do.split()[1]}" in message
        assert all(word in message for word in ("'one'", "CEREBRO_SANDBOX=off", "worker.sandbox"))
    assert other.read_text() == "theirs"
    assert not (tmp_path / "new").exists()
    kind, message = started.failure(started.give(19, "odd denial"))
    assert (kind, "The sandbox" in message) == (FailureKind.USER_ERROR, False)
    # Missing files and ordinary permissions are not blamed on the sandbox.
    assert "sandbox" not in started.failure(started.give(20, f"read {tmp_path}/checkpoints/one/none"))[1]


@needs_landlock
@pytest.mark.skipif(bool(metadata_guard.why_unavailable()), reason="seccomp has no listeners here")
def test_user_code_cannot_change_metadata_of_foreign_files(started: Agents, tmp_path: Path) -> None:
    """Landlock does not cover these calls.

    The error has the path, the sandbox and the setting; own files can be changed, also by a later process for
    another data set.
    """
    other = tmp_path / "checkpoints/other/fit-1/m00/u00000.pt"
    other.parent.mkdir(parents=True)
    other.write_text("theirs")
    other.chmod(0o644)
    own_file = tmp_path / "checkpoints/one/note"
    assert isinstance(started.end_of(started.give(0, f"write {own_file}")), TaskCommitted)
    for number, do in enumerate([f"chmod {own_file}", f"mark {own_file}", f"chmod {tmp_path}/temporary"], 1):
        assert isinstance(started.end_of(started.give(number, do)), TaskCommitted)
    assert (own_file.stat().st_mode & 0o777, os.listxattr(own_file)) == (0o700, ["user.mark"])
    for number, do in enumerate([f"chmod {other}", f"mark {other}", f"chmod {other.parent}"], 10):
        kind, message = started.failure(started.give(number, do))
        assert kind is FailureKind.USER_ERROR
        assert f"The sandbox of this worker refused {do.split()[1]}" in message
    assert (other.stat().st_mode & 0o777, os.listxattr(other)) == (0o644, [])


@needs_landlock
def test_user_code_does_not_read_the_token_of_a_local_cluster(agents: Agents, tmp_path: Path) -> None:
    """The operator's token is in a file of the same user."""
    token = tmp_path / "home" / "run" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    (tmp_path / "temporary").mkdir()
    agents.start(
        CEREBRO_SANDBOX="on",
        CEREBRO_SERVICE_OF=str(tmp_path / "home"),
        TMPDIR=str(tmp_path / "temporary"),
        HOME=str(tmp_path / "nobody"),
    )
    kind, message = agents.failure(agents.give(0, f"read {token}"))
    assert (kind, f"The sandbox of this worker refused {token}" in message) == (FailureKind.USER_ERROR, True)


@needs_landlock
def test_a_process_serves_one_data_set_and_one_folder(started: Agents, tmp_path: Path) -> None:
    """The code is decoded again for another data set or a recreated folder. The agent does not send it twice."""
    code = started.learn(SubEpochSpec())

    def process(partition: int, dataset: str) -> str:
        body = TrainTask(
            key=f"fit-1/train/m{partition:02}/e1/p{partition}", experiment="one", run="fit-1", model=f"m{partition:02}",
            hyperparams={"do": "pid", "file": ""}, code=code, dataset=dataset, seed=0, hang_timeout_s=60.0, epoch=1,
            partition=partition, sub_epoch=0, position=Position(), checkpoint=None, keep=(),
        )  # fmt: skip
        started.assign(body, attempt=1, devices=(0,))
        assert isinstance(started.end_of(body.key), TaskCommitted)
        return started.log(partition).split("process ")[1].split()[0]

    first, again, other, back = (process(n, dataset) for n, dataset in enumerate(["d", "d", "e", "d"]))
    assert first == again
    assert len({first, other, back}) == 3
    shutil.rmtree(tmp_path / "checkpoints/one")
    (tmp_path / "checkpoints/one").mkdir()
    assert process(4, "d") != back
    assert isinstance(started.end_of(started.give(5, f"write {tmp_path}/checkpoints/one/x")), TaskCommitted)

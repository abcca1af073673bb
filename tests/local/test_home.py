"""The folder of a cluster: its layout, secrets and sockets."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cerebro.errors import ClusterError
from cerebro.local.home import LONGEST_SOCKET_PATH, ClusterHome


def test_a_home_is_private(tmp_path: Path) -> None:
    """Other users can reach neither the token, the database nor the data."""
    home = ClusterHome(tmp_path / "home")
    home.create()
    home.create()
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.run.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.store.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.token_file.stat().st_mode) == 0o600
    assert len(home.token()) >= 32


def test_an_open_home_is_made_private_with_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers homes made by hand or by an earlier version under the usual umask."""
    home = ClusterHome(tmp_path / "home")
    for folder in (home.logs, home.volumes / "shards" / "worker-0", home.notebooks):
        folder.mkdir(parents=True)
    for folder in (home.path, home.logs, home.volumes, home.notebooks):
        folder.chmod(0o755)
    home.create()
    for folder in (home.path, home.logs, home.volumes, home.notebooks, home.run):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    (message,) = caplog.messages
    assert message.startswith("open to other users of this machine until now")
    assert message.endswith(f"closed to them: {home.path}, {home.volumes}, {home.logs}, {home.notebooks}")
    home.create()
    assert len(caplog.messages) == 1


def test_in_a_shared_folder_only_the_subfolders_become_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A home in `~` or `/srv` is not Cerebro's folder, so only its subfolders are restricted."""
    (tmp_path / "paper.tex").touch()
    home = ClusterHome(tmp_path)
    home.logs.mkdir()
    for folder in (tmp_path, home.logs):
        folder.chmod(0o755)
    home.create()
    (message,) = caplog.messages
    assert f"closed to them: {home.logs} ({tmp_path} itself is not changed" in message
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    for folder in (home.logs, home.volumes, home.store, home.run):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_home_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could read and change everything, so nothing is written there."""
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ClusterError, match=r"belongs to another user .*choose a folder of your own"):
        ClusterHome(tmp_path).create()
    assert list(tmp_path.iterdir()) == []


def test_concurrent_calls_get_the_same_token(tmp_path: Path) -> None:
    """Two concurrent first calls agree and leave no temporary files."""
    home = ClusterHome(tmp_path / "home")
    home.run.mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: ClusterHome(home.path).token(), range(8)))
    assert len(tokens) == 1
    assert [path.name for path in home.run.iterdir()] == ["token"]


def test_a_long_path_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel limits socket paths to 107 bytes."""
    home = ClusterHome(tmp_path / ("deep/" * 25))
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    try:
        socket = home.prepare_socket()
        assert len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert home.prepare_socket() == socket
    finally:
        socket.parent.rmdir()


@pytest.mark.parametrize("trap", ["open", "link", "file"])
def test_an_unsafe_socket_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """A folder that others can write, a link, or a file under the expected name is refused."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = ClusterHome(tmp_path / ("deep/" * 25))
    folder = tmp_path / f"cerebro-{os.getuid()}-{home.key}"
    if trap == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif trap == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.touch(mode=0o700)
    with pytest.raises(ClusterError, match="socket"):
        home.prepare_socket()


def test_a_home_has_one_lock(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    home.create()
    lock = home.take_lock()
    assert lock is not None
    assert home.take_lock() is None
    os.close(lock)
    again = home.take_lock()
    assert again is not None
    os.close(again)

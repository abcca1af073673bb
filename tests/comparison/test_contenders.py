"""The other training methods as programs on few rows, and how their memory and traffic are measured."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks.compare import sitting, task

ROWS, RATES = 6000, (0.001, 0.002)
SMAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fd:00 12 /data/train-inputs.npy
Size:                  8 kB
Rss:                   4 kB
Pss:                   2 kB
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
Rss:                 100 kB
7f0000004000-7f0000005000 r--p 00000000 fd:00 13 /data/valid-inputs.npy
Rss:                  50 kB
7f0000006000-7f0000007000 r--p 00001000 fd:00 12 /data/train-inputs.npy
Rss:                   8 kB
"""


def test_held_bytes_are_the_resident_bytes_of_matching_files() -> None:
    """Over all mappings of a file, and no other file."""
    assert task.held(r"train-inputs\.npy$", SMAPS) == 12 * 1024
    assert task.held("nowhere", SMAPS) == 0


def test_sent_bytes_were_received_by_a_peer() -> None:
    """By the kernel's counters for this process's sockets."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        peer, _ = server.accept()
        with peer:
            before = task.sent()
            client.sendall(bytes(10_000))
            received = 0
            while received < 10_000:
                received += len(peer.recv(10_000))
            client.sendall(b"x")  # acknowledged after all earlier bytes
            peer.recv(1)
            assert task.sent() - before >= 10_000


def test_each_method_gets_the_same_rows() -> None:
    """Methods that generate rows and methods that read them train on the same rows; held-out rows differ."""
    assert (task.row(7) == task.row(7)).all()
    assert task.label(17) == 7
    assert not set(task.numbers("train", ROWS)) & set(task.numbers("valid", ROWS))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    task.write(folder, ROWS)
    return folder


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "share", "times_weights"),
    [
        ("task-parallel", 1, 0),
        ("ray-tune", 1, 0),
        ("averaging", 1 / task.WORKERS, 2),
        ("ddp", 1 / task.WORKERS, 2 * -(-ROWS // task.BATCH)),
        ("parameter-server", 1 / task.WORKERS, 2 * -(-ROWS // task.BATCH)),
    ],
)
def test_each_method_trains_and_reports_its_time(
    data: Path, method: str, share: float, times_weights: int
) -> None:
    """Its models beat chance; it holds its share of the rows and sends the expected bytes."""
    if method == "ray-tune" and not sitting.RAY_PYTHON.exists():
        pytest.skip("Ray Tune is not installed: `make compare` installs it")
    found = sitting.contender(sitting.METHODS[method], data, RATES)
    assert min(found["accuracy"]) > 2 / task.CLASSES
    rows = ROWS * task.FEATURES * 4
    assert share * rows <= found["held"] <= 1.2 * share * rows + 1e6
    weights = sum(parameter.numel() for parameter in task.network().parameters()) * 4
    # Saving sends the weights once more; broadcasts, counts and headers are extra.
    expected = len(RATES) * weights * (times_weights + 1)
    assert expected <= found["moved"] <= 1.2 * expected + 6 * weights

"""Pods create the folders of the metrics claim before they mount them one by one."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import Object, render
from tests.waiting import HANG_S

NOBODY, OURS = 65534, 1000


@pytest.mark.parametrize("values", VALUES)
def test_pods_create_their_folders_themselves(values: str) -> None:
    """The kubelet would create them as root, unwritable for others.

    Each pod that mounts a folder first creates all folders as its own user without privileges, so any pod may be the
    first.
    """
    for name, pod in render(values).pods():
        spec = pod["spec"]
        mounted = {
            (mount["name"], mount["subPath"])
            for container in spec["containers"]
            for mount in container["volumeMounts"]
            if "subPath" in mount
        }
        before = {one["name"]: one for one in spec.get("initContainers", ())}
        assert set(before) == ({"folders"} if mounted else set()), name
        if not mounted:
            continue
        (mount,) = before["folders"]["volumeMounts"]
        assert "subPath" not in mount
        folders = {
            (mount["name"], folder) for folder in ("metrics", "logs") if _makes(before["folders"], folder)
        }
        assert mounted <= folders, name
        assert "runAsUser" not in before["folders"]["securityContext"], name


def _makes(container: Object, folder: str) -> bool:
    place = container["volumeMounts"][0]["mountPath"]
    return f"{place}/{folder}" in container["args"][0]


@pytest.fixture
def claim() -> Iterator[Path]:
    """A volume owned by user 1000 if the tests may change owners, else by the current user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder, OURS, OURS)
    yield folder
    shutil.rmtree(folder)


def _run(claim: Path) -> subprocess.CompletedProcess[str]:
    container = dict(render("defaults").containers())["worker/folders"]
    script = container["args"][0].replace(container["volumeMounts"][0]["mountPath"], str(claim))
    user = OURS if os.geteuid() == 0 else None
    return subprocess.run(
        [*container["command"], script],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        user=user,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="folders of another user can be made by root alone")
def test_folders_that_cannot_be_written_are_refused_with_advice(claim: Path) -> None:
    """An earlier chart let the kubelet create them.

    The pod does not start and prints the fix, so no run fails later.
    """
    (claim / "logs").mkdir()
    os.chown(claim / "logs", NOBODY, NOBODY)
    done = _run(claim)
    assert done.returncode == 1
    assert "folder logs of the claim cerebro-metrics" in done.stderr
    assert "chown -R 1000:1000" in done.stderr
    assert "storage.handOver=always" in done.stderr

"""`cerebro replay` in the environment of the run's code, with part of the data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import DEADLINE_S, Lab
from tests.e2e.specs import TinyETL, TinyTraining
from tests.e2e.test_user_code import upload, write_wheel


def replay(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run `cerebro replay`; return exit status and output. Test modules cannot be imported, as in a user's notebook."""
    command = [sys.executable, "-P", "-m", "cerebro.cli", "replay", *arguments]
    done = subprocess.run(
        command,
        env=os.environ | environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout


class Greeting(TinyTraining):
    """Needs a package from requirements.txt, an uploaded module, and a file next to it."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        import e2e_greeting  # type: ignore[import-not-found]  # only where the requirements are installed
        import e2e_uploaded  # type: ignore[import-not-found]  # only among the uploaded files

        scale = e2e_greeting.VALUE + e2e_uploaded.VALUE + int(Path("e2e_number.txt").read_text())
        lr = {"lr": hyperparams["lr"] * scale / 100}
        return super().train(models, checkpoint, dataloader, {**hyperparams, **lr})


@pytest.mark.slow
def test_a_run_is_replayed_in_the_environment_of_its_code(lab: Lab, tmp_path: Path) -> None:
    """The newest finished fit by default, or the named one."""
    folder = upload(tmp_path / "code", "./e2e_greeting-1.0-py3-none-any.whl")
    write_wheel(folder)
    (folder / "e2e_number.txt").write_text("3")
    experiment = lab.prepared(code=folder)
    for tags in ("ab", "c"):
        result = lab.result(lab.fit(experiment, Greeting(), tags=tags, epochs=1), experiment)
        assert result.failures() == {}
    lines = "{0}: replaying 2 sub-epochs\n{0}: 2 sub-epochs replayed, final state equal to the bit\n"
    assert replay(experiment.name) == (0, lines.format("m00"))
    assert replay(experiment.name, "--run", "fit-1") == (0, lines.format("m00") + lines.format("m01"))


class Scaled(TinyETL):
    """Reads an object that workers can read and that may be deleted later."""

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        values, label = super().row_preprocessor(row, mode, object_dir)
        return values * float(Path(object_dir, "scale.txt").read_text()), label


def pod(lab: Lab, root: Path, worker: str) -> Mapping[str, str]:
    """Return the environment of a worker's pod: shared volumes, and its own shard volume."""
    root.mkdir()
    for name in ("shared", "checkpoints", "code"):
        (root / name).symlink_to(getattr(lab.volumes, name))
    (root / "shards").symlink_to(lab.volumes.shards / worker)
    info = lab.info()
    return {
        "CEREBRO_SERVER": info.kvs,
        "CEREBRO_TOKEN": info.token(),
        "CEREBRO_VOLUMES": str(root),
    }


@pytest.mark.slow
def test_a_replay_rebuilds_partitions_of_other_workers(lab: Lab, tmp_path: Path) -> None:
    """In a worker's pod and outside the cluster; checksums prove the result, and no file remains.

    Changed or missing objects are reported.
    """
    objects = tmp_path / "objects"
    objects.mkdir()
    (objects / "scale.txt").write_text("0.5")
    locators = {
        split: {"metadata": metadata, "objects": str(objects)} for split, metadata in lab.tables().items()
    }
    experiment = lab.experiment(locators)
    experiment.run_etl(Scaled(), progress=False)
    lab.result(lab.fit(experiment, TinyTraining(), tags="a"), experiment)
    worker = pod(lab, tmp_path / "worker", "worker-0")
    away = {
        "CEREBRO_SERVER": lab.info().dispatcher,
        "CEREBRO_TOKEN": lab.info().token(),
        "CEREBRO_CACHE": str(tmp_path / "away"),
        "CEREBRO_VOLUMES": "/nonexistent",
    }
    for place, missing in ((worker, (1,)), (away, (0, 1))):
        status, output = replay(experiment.name, **place)
        *made, start, last = output.splitlines()
        assert start == "m00: replaying 4 sub-epochs"
        assert last == "m00: 4 sub-epochs replayed, final state equal to the bit"
        assert [line.split(" is not on this machine")[0] for line in made] == [
            f"partition {p}" for p in missing
        ]
        assert status == 0
    (objects / "scale.txt").write_text("0.25")
    status, output = replay(experiment.name, **worker)
    assert status == 1
    assert "the rebuilt partition 1 differs from the original: the files of the locators" in output
    assert "final state DIFFERENT in state" in output
    assert output.endswith("(partitions 1 were preprocessed again: their objects may have changed)\n")
    (objects / "scale.txt").unlink()
    status, output = replay(experiment.name, **worker)
    assert status == 1
    assert "partition 1 of data set" in output
    assert "could not be preprocessed again: preprocessing of split 'train' ended" in output
    assert not [*tmp_path.rglob("cerebro-replay-*"), *lab.volumes.shards.rglob("cerebro-replay-*")]

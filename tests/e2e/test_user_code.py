"""Mistakes in user code fail only their model or run, with the user's error; requirements are installed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from cerebro import ETLSpec, Limits
from cerebro.errors import RunFailedError
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining

pytestmark = pytest.mark.slow


def test_each_mistake_fails_its_own_model_only(lab: Lab, prepared: str) -> None:
    """An exception, an exit and a NaN loss fail three models, and the fourth trains.

    Another run ends because its only model hangs.
    """
    experiment = lab.attach(prepared)
    spec = TinyTraining(gate=lab.gate.port, trouble={"r": "raise", "h": "hang", "x": "exit", "n": "nan"})
    result = lab.result(lab.fit(experiment, spec, tags="rxng", limits=Limits(max_attempts=2)), experiment)
    failures = result.failures()
    assert sorted(failures) == ["m00", "m01", "m02"]
    assert "ZeroDivisionError: a mistake in user code" in failures["m00"]
    assert "in misbehave" in failures["m00"]
    assert "ended by itself with exit status 7" in failures["m01"]
    assert "loss became nan in epoch 1" in failures["m02"]
    assert result.best.id == "m03"
    run = lab.check(experiment, result.run)
    assert str(run.state) == "finished"
    # In a separate run, since on a slow machine the limit of two seconds would also end the other models.
    with pytest.raises(RunFailedError, match=r"no batch for \d+ s"):
        lab.result(
            lab.fit(experiment, spec, tags="h", limits=Limits(hang_timeout_s=2, max_attempts=1)), experiment
        )


def test_a_run_whose_models_all_fail_shows_the_cause(lab: Lab, prepared: str) -> None:
    """The error has the cause once, with the user's frames; `status` has a line, and the experiment stays usable."""
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(trouble={"a": "raise", "b": "raise"}), tags="ab")
    message = "all 2 models failed: ZeroDivisionError: a mistake in user code"
    with pytest.raises(RunFailedError, match=message) as caught:
        lab.result(fit, experiment)
    text = str(caught.value)
    assert (text.count("Traceback"), text.count("in misbehave"), text.count(message)) == (1, 1, 1)
    assert "cerebro/worker/agent" not in text
    (line,) = [line for line in experiment.status().splitlines() if "mistake" in line]
    assert line.endswith(f"done ({message})")
    assert "Traceback" not in experiment.status()
    assert lab.result(lab.fit(experiment, TinyTraining(), tags="a", epochs=1), experiment).failures() == {}


class GreetingETL(ETLSpec):
    """Uses a package from requirements.txt and an uploaded module."""

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        import e2e_greeting  # type: ignore[import-not-found]  # only where the requirements are installed
        import e2e_uploaded  # type: ignore[import-not-found]  # only among the uploaded files

        return float(e2e_greeting.VALUE + e2e_uploaded.VALUE), int(row["label"])


def write_wheel(folder: Path) -> str:
    """Build a wheel with one module by hand, without downloads; return its file name."""
    name = "e2e_greeting-1.0-py3-none-any.whl"
    about = "e2e_greeting-1.0.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("e2e_greeting.py", "VALUE = 40\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: e2e-greeting\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name


def upload(folder: Path, requirements: str) -> Path:
    """Write a code folder with these requirements."""
    folder.mkdir()
    (folder / "requirements.txt").write_text(f"--no-index\n{requirements}\n")
    (folder / "e2e_uploaded.py").write_text("VALUE = 2\n")
    return folder


def test_requirements_are_installed_for_user_code(lab: Lab, tmp_path: Path) -> None:
    """User code imports a package from requirements.txt and an uploaded module."""
    folder = upload(tmp_path / "code", "./e2e_greeting-1.0-py3-none-any.whl")
    write_wheel(folder)
    experiment = lab.experiment(lab.tables(train=8), code=folder)
    result = lab.spawn(lambda: experiment.run_etl(GreetingETL(), progress=False))
    assert lab.result(result, experiment).kept_rows == {"train": 8}


def test_failed_requirements_are_reported_with_the_output_of_pip(lab: Lab, tmp_path: Path) -> None:
    experiment = lab.experiment(lab.tables(train=8), code=upload(tmp_path / "code", "./nope"))
    result = lab.spawn(lambda: experiment.run_etl(GreetingETL(), progress=False))
    with pytest.raises(RunFailedError, match=r"(?s)requirements\.txt .* pip said:.*nope"):
        lab.result(result, experiment)

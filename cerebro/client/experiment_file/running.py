"""An experiment file carried out, or tried."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.client.asking import asked_fit, check_dry_run, check_etl
from cerebro.client.creation import packed_code
from cerebro.client.experiment import Experiment
from cerebro.client.experiment_file.form import ExperimentFile, read
from cerebro.client.techniques import chosen, to_try
from cerebro.contract import priority
from cerebro.contract.records import ExperimentRecord, Locators
from cerebro.data.locators import absolute, parse_locators
from cerebro.errors import ExperimentFileError, PermanentError
from cerebro.runtime.checked_yaml import told
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.named import Named

if TYPE_CHECKING:
    import pandas as pd

    from cerebro.client.dry_run import DryRun

_LEFT = ("leaderboard.csv", "history.csv", "sub_epochs.csv", "test.csv", "predictions.csv", "report.html")
Say = Callable[[str], None]
"""Told what has happened, a line or some at a time."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A file with the user's code that it names. What can be said without a cluster is checked."""

    file: ExperimentFile
    folder: Path
    """Of the file: relative paths are in it."""
    code: Path | None
    output: Path
    etl: ETLSpec
    training: SubEpochSpec | None
    fit: Mapping[str, Any]
    """Arguments of `Experiment.run_fit` that the file gives."""

    @classmethod
    def open(cls, path: Path, *, output: Path | None = None) -> Study:
        """Read the file, import the code, and check what can be checked without a cluster. Runs user code.

        Args:
            output: instead of the file's.

        Raises:
            ExperimentFileError: what is wrong, with its line.
        """
        file, folder = read(path), path.absolute().parent
        code = None if file.code is None else folder / file.code
        output = output or folder / (file.output or f"results/{file.name}")
        with _told(path, "code"):
            _check_code(code, path, output)
        modules = [folder] if code is None or not code.is_dir() else [code, folder]
        with _told(path, "etl", "spec"):
            etl = Named.parse(file.etl.spec).loaded(modules)
        training, fit = None, {}
        if file.fit is not None:
            with _told(path, "fit", "spec"):
                training = Named.parse(file.fit.spec).loaded(modules)
            with _told(path, "fit", "search"):
                fit = _loaded(file.fit.given, modules)
        study = cls(file=file, folder=folder, code=code, output=output, etl=etl, training=training, fit=fit)
        study._check(path)
        return study

    @property
    def locators(self) -> Locators:
        """With absolute paths."""
        return absolute(parse_locators(self.file.locators), self.folder)

    def _check(self, path: Path) -> None:
        parts = {
            "etl": self.file.etl,
            "fit": self.file.fit,
            "test": self.file.test,
            "predict": self.file.predict,
        }
        for name, part in parts.items():
            if part is not None and "priority" in part.given:
                with _told(path, name, "priority"):
                    priority.parse(part.given["priority"])
        etl = self.file.etl.whole
        with _told(path, "etl"):
            check_etl(
                self.etl,
                self.locators,
                fraction=etl["fraction"],
                max_failed=etl["max_failed"],
                is_outside=False,
                rules=etl["failure_rules"],
            )
        if self.file.fit is None or self.training is None:
            return
        options = {**self.file.fit.whole, **self.fit}
        with _told(path, "fit"):
            is_validated = self.locators.valid is not None
            asked_fit(self.training, self.file.fit.space, options, is_validated=is_validated)
            named = (options[name] for name in ("techniques", "gpus", "trials", "gang"))
            chosen(*named, workers={}, put_code=lambda code: code)

    def experiment(self) -> Experiment:
        """Created, or found again."""
        return Experiment(self.file.name, locators=self.file.locators, code=self.code, folder=self.folder)

    def dry_run(self, *, rows: int = 8) -> DryRun:
        """The first rows of each split and one batch of them, in this process; there need be no cluster."""
        from cerebro.client.dry_run import dry_run

        space = None if self.file.fit is None else self.file.fit.space
        is_validated = self.locators.valid is not None
        configuration = check_dry_run(self.etl, self.training, space, rows=rows, is_validated=is_validated)
        packed = b"" if self.code is None else packed_code(self.code)
        record = ExperimentRecord(
            name=self.file.name,
            locators=self.locators,
            archive=hashlib.sha256(packed).hexdigest() if packed else None,
        )
        parallel_plans = to_try(self.fit.get("techniques"), self.fit.get("gpus"))
        return dry_run(
            record,
            lambda _: packed,
            self.etl,
            self.training,
            configuration,
            rows=rows,
            parallel_plans=parallel_plans,
        )

    def run(self, say: Say) -> None:
        """Preprocess, train, test and predict as the file says; tables and the report are left in `output`."""
        experiment = self.experiment()
        for name in _LEFT:
            (self.output / name).unlink(
                missing_ok=True
            )  # of an earlier call, which may have left more than this one
        if page := experiment.connection.page:
            say(f"experiment {experiment.name}: {page}/experiments/{experiment.name}")
        made = experiment.run_etl(self.etl, **self.file.etl.given)
        kept, failed = sum(made.kept.values()), sum(made.failed.values())
        say(f"preprocessed {kept:,} rows in {made.seconds:.1f} s, {failed:,} failed")
        if self.file.fit is None or self.training is None:
            return
        result = experiment.run_fit(self.training, self.file.fit.space, **self.fit)
        say(f"\nleaderboard of {result.run}\n{result.leaderboard().to_string()}\n")
        self._keep("leaderboard", result.leaderboard())
        self._keep("history", result.history(), index=False)
        self._keep("sub_epochs", result.sub_epochs(), index=False)
        result.report(self.output / "report.html")
        for name, part, call in (
            ("test", self.file.test, experiment.run_test),
            ("predictions", self.file.predict, experiment.run_predict),
        ):
            if part is None:
                continue
            options = part.given
            table = call(options.pop("models", None), fit=result.run, **options)
            self._keep(name, table)
            say(f"{name}: {table.to_string()}" if name == "test" else f"{len(table)} {name}")
        say(f"tables and the report: {self.output}")

    def _keep(self, name: str, table: pd.DataFrame, *, index: bool = True) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        table.to_csv(self.output / f"{name}.csv", index=index)


def _check_code(code: Path | None, path: Path, output: Path) -> None:
    """Code is sent as it is, and an experiment keeps the code it has: nothing in the folder may change by itself."""
    for inside, what in ((path, "this file"), (output, "the output")):
        if code is not None and inside.resolve().is_relative_to(code.resolve()):
            raise ExperimentFileError(
                f"the folder {code} holds {what} ({inside}), which is no code: keep code in a folder of its own, such "
                "as `code: src`"
            )


@contextmanager
def _told(path: Path, *place: str) -> Iterator[None]:
    """What is wrong is told with the line of the place."""
    try:
        yield
    except PermanentError as problem:
        raise ExperimentFileError(
            told(path.read_text(encoding="utf-8"), str(path), place, problem)
        ) from problem


def _loaded(options: Mapping[str, Any], modules: Sequence[Path]) -> dict[str, Any]:
    """The options with objects of the user's classes where the file names these."""
    return {name: each.loaded(modules) if isinstance(each, Named) else each for name, each in options.items()}

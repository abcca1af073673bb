"""Execution of an experiment file for `cerebro run`: the full run, or a dry run.

It imports the user's code, calls `Experiment` in order, and writes tables and the report to the output folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.client.experiment import Experiment
from cerebro.client.experiment_file.schema import ExperimentFile, read
from cerebro.client.requests.creation import pack_code
from cerebro.client.requests.run_requests import (
    FitOptions,
    arguments_from_flat,
    check_dry_run,
    check_etl,
    resolve_fit,
)
from cerebro.client.requests.techniques import dry_run_plans, resolve_techniques
from cerebro.contract import priority
from cerebro.contract.records import ExperimentRecord, Locators
from cerebro.data.tables.locators import absolute, parse_locators
from cerebro.errors import ExperimentFileError, PermanentError
from cerebro.runtime.checked_yaml import located_message
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.named import Named

if TYPE_CHECKING:
    import pandas as pd

    from cerebro.client.dry_run import DryRun

_OUTPUT_FILES = (
    "leaderboard.csv",
    "history.csv",
    "sub_epochs.csv",
    "test.csv",
    "predictions.csv",
    "report.html",
)
Say = Callable[[str], None]
"""Callback for progress messages of one or more lines."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment file together with its user code, checked without a cluster."""

    file: ExperimentFile
    folder: Path
    """Folder of the file, base of relative paths."""
    code: Path | None
    output: Path
    etl: ETLSpec
    training: SubEpochSpec | None
    fit: Mapping[str, Any]
    """Options of the fit in the file, with flat keys."""

    @classmethod
    def open(cls, path: Path, *, output: Path | None = None) -> Study:
        """Read the file, import its code, and check both. Runs user code.

        Args:
            path: path of the file.
            output: output folder. Default: the file's.

        Raises:
            ExperimentFileError: a mistake, with its line.
        """
        file, folder = read(path), path.absolute().parent
        code = None if file.code is None else folder / file.code
        output = output or folder / (file.output or f"results/{file.name}")
        with _located_errors(path, "code"):
            _check_code(code, path, output)
        modules = [folder] if code is None or not code.is_dir() else [code, folder]
        with _located_errors(path, "etl", "spec"):
            etl = Named.parse(file.etl.spec).loaded(modules)
        training, fit = None, {}
        if file.fit is not None:
            with _located_errors(path, "fit", "spec"):
                training = Named.parse(file.fit.spec).loaded(modules)
            with _located_errors(path, "fit", "search"):
                fit = _load_named(file.fit.explicit, modules)
        study = cls(file=file, folder=folder, code=code, output=output, etl=etl, training=training, fit=fit)
        study._check(path)
        return study

    @property
    def locators(self) -> Locators:
        """Dataset locators with absolute paths."""
        return absolute(parse_locators(self.file.locators), self.folder)

    def _check(self, path: Path) -> None:
        parts = {
            "etl": self.file.etl,
            "fit": self.file.fit,
            "test": self.file.test,
            "predict": self.file.predict,
        }
        for name, part in parts.items():
            if part is not None and "priority" in part.explicit:
                with _located_errors(path, name, "priority"):
                    priority.parse(part.explicit["priority"])
        etl = self.file.etl.with_defaults
        with _located_errors(path, "etl"):
            check_etl(
                self.etl,
                self.locators,
                fraction=etl["fraction"],
                max_failed=etl["max_failed"],
                is_remote=False,
                failure_rules=etl["failure_rules"],
            )
        if self.file.fit is None or self.training is None:
            return
        with _located_errors(path, "fit"):
            has_validation_split = self.locators.valid is not None
            options = FitOptions.from_flat(self.fit)
            resolve_fit(
                self.training, self.file.fit.space, options, has_validation_split=has_validation_split
            )
            resolve_techniques(options.parallelism, workers={}, put_code=lambda code: code)

    def experiment(self) -> Experiment:
        """Create or open the experiment."""
        return Experiment(self.file.name, locators=self.file.locators, code=self.code, folder=self.folder)

    def dry_run(self, *, rows: int = 8) -> DryRun:
        """Try the file on a few rows in this process, without a cluster; see `Experiment.dry_run`."""
        from cerebro.client.dry_run import dry_run

        space = None if self.file.fit is None else self.file.fit.space
        has_validation_split = self.locators.valid is not None
        configuration = check_dry_run(
            self.etl, self.training, space, rows=rows, has_validation_split=has_validation_split
        )
        archive = b"" if self.code is None else pack_code(self.code)
        record = ExperimentRecord(
            name=self.file.name,
            locators=self.locators,
            archive=hashlib.sha256(archive).hexdigest() if archive else None,
        )
        parallel_plans = dry_run_plans(FitOptions.from_flat(self.fit).parallelism)
        return dry_run(
            record,
            lambda _: archive,
            self.etl,
            self.training,
            configuration,
            rows=rows,
            parallel_plans=parallel_plans,
        )

    def run(self, say: Say) -> None:
        """Run all steps of the file, and write tables and report to `output`."""
        experiment = self.experiment()
        for name in _OUTPUT_FILES:
            (self.output / name).unlink(missing_ok=True)  # an earlier call may have written more files
        if page := experiment.connection.page_of(experiment.name):
            say(f"experiment {experiment.name}: {page}")
        etl = experiment.run_etl(self.etl, **self.file.etl.explicit)
        num_rows, num_failed = sum(etl.kept_rows.values()), sum(etl.failed.values())
        say(f"preprocessed {num_rows:,} rows in {etl.seconds:.1f} s, {num_failed:,} failed")
        if self.file.fit is None or self.training is None:
            return
        result = experiment.run_fit(self.training, self.file.fit.space, **arguments_from_flat(self.fit))
        say(f"\nleaderboard of {result.run}\n{result.leaderboard().to_string()}\n")
        self._write("leaderboard", result.leaderboard())
        self._write("history", result.history(), index=False)
        self._write("sub_epochs", result.sub_epochs(), index=False)
        result.report(self.output / "report.html")
        for name, part, call in (
            ("test", self.file.test, experiment.run_test),
            ("predictions", self.file.predict, experiment.run_predict),
        ):
            if part is None:
                continue
            options = part.explicit
            table = call(options.pop("models", None), fit=result.run, **options)
            self._write(name, table)
            say(f"{name}: {table.to_string()}" if name == "test" else f"{len(table)} {name}")
        say(f"tables and the report: {self.output}")

    def _write(self, name: str, table: pd.DataFrame, *, index: bool = True) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        table.to_csv(self.output / f"{name}.csv", index=index)


def _check_code(code: Path | None, path: Path, output: Path) -> None:
    """Reject a code folder with changing files: an experiment's code is fixed."""
    for inner, label in ((path, "this file"), (output, "the output")):
        if code is not None and inner.resolve().is_relative_to(code.resolve()):
            raise ExperimentFileError(
                f"the folder {code} contains {label} ({inner}), which is not code: use a separate folder, such as "
                "`code: src`"
            )


@contextmanager
def _located_errors(path: Path, *place: str) -> Iterator[None]:
    """Add file, line and field to errors."""
    try:
        yield
    except PermanentError as problem:
        raise ExperimentFileError(
            located_message(path.read_text(encoding="utf-8"), str(path), place, problem)
        ) from problem


def _load_named(options: Mapping[str, Any], modules: Sequence[Path]) -> dict[str, Any]:
    """Replace names of user classes by objects."""
    return {
        name: value.loaded(modules) if isinstance(value, Named) else value for name, value in options.items()
    }

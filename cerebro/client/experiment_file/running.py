"""An experiment file carried out, or tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.client.asking import asked_fit, check_etl
from cerebro.client.experiment import Experiment
from cerebro.client.experiment_file.form import ExperimentFile, read
from cerebro.client.experiment_file.words import Named
from cerebro.data.locators import absolute, parse_locators
from cerebro.errors import ExperimentFileError, PermanentError
from cerebro.spec import ETLSpec, SubEpochSpec

if TYPE_CHECKING:
    import pandas as pd

    from cerebro.client.dry_run import DryRun
    from cerebro.contract.records import Locators

Say = Callable[[str], None]
"""Told what has happened, a line or some at a time."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A file with the user's code that it names. What can be said without a cluster is checked."""

    file: ExperimentFile
    locators: Locators
    code: Path | None
    output: Path
    etl: ETLSpec
    training: SubEpochSpec | None
    fit: Mapping[str, Any]
    """Arguments of `Experiment.run_fit` that the file gives."""

    @classmethod
    def open(cls, path: Path, *, output: Path | None = None) -> Study:
        """Read the file and import the code. Runs user code.

        Args:
            output: instead of the file's.

        Raises:
            ExperimentFileError: what is wrong with the file.
            Whatever importing the user's modules raises.
        """
        file, folder = read(path), path.absolute().parent
        code = None if file.code is None else folder / file.code
        modules = code if code is not None and code.is_dir() else folder
        try:
            study = cls(
                file=file,
                locators=absolute(parse_locators(file.locators), folder),
                code=code,
                output=output or folder / (file.output or f"results/{file.name}"),
                etl=Named.parse(file.etl.spec).loaded(modules),
                training=None if file.fit is None else Named.parse(file.fit.spec).loaded(modules),
                fit={} if file.fit is None else _loaded(file.fit.given, modules),
            )
            study._check()
        except ExperimentFileError as problem:
            raise ExperimentFileError(f"{path}: {problem}") from problem
        except PermanentError as problem:
            raise type(problem)(f"{path}: {problem}") from problem
        return study

    def _check(self) -> None:
        etl = {**_defaults(Experiment.run_etl), **self.file.etl.given}
        check_etl(
            self.etl, self.locators, fraction=etl["fraction"], max_failed=etl["max_failed"], is_outside=False
        )
        if self.file.fit is not None and self.training is not None:
            options = {**_defaults(Experiment.run_fit), **self.fit}
            is_validated = self.locators.valid is not None
            asked_fit(self.training, self.file.fit.space, options, is_validated=is_validated)

    def experiment(self) -> Experiment:
        """Created, or found again."""
        return Experiment(self.file.name, locators=self.locators, code=self.code)

    def try_out(self) -> DryRun:
        """The first rows of each split and one batch of them, in this process."""
        fit = self.file.fit
        if fit is None:
            return self.experiment().try_out(self.etl)
        ways = {name: self.fit[name] for name in ("techniques", "gpus") if name in self.fit}
        return self.experiment().try_out(self.etl, self.training, fit.space, **ways)

    def run(self, say: Say) -> None:
        """Preprocess, train, test and predict as the file says; tables and the report are left in `output`."""
        experiment = self.experiment()
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
        self._keep("visits", result.visits(), index=False)
        result.report(self.output / "report.html")
        for name, part, call in (
            ("test", self.file.test, experiment.run_test),
            ("predictions", self.file.predict, experiment.run_predict),
        ):
            if part is None:
                continue
            options = part.given
            table = call(options.pop("models", None) or None, fit=result.run, **options)
            self._keep(name, table)
            say(f"{name}: {table.to_string()}" if name == "test" else f"{len(table)} {name}")
        say(f"tables and the report: {self.output}")

    def _keep(self, name: str, table: pd.DataFrame, *, index: bool = True) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        table.to_csv(self.output / f"{name}.csv", index=index)


def _loaded(options: Mapping[str, Any], modules: Path) -> dict[str, Any]:
    """The options with objects of the user's classes where the file names these."""
    return {name: each.loaded(modules) if isinstance(each, Named) else each for name, each in options.items()}


def _defaults(method: Callable[..., Any]) -> Mapping[str, Any]:
    return {
        name: each.default
        for name, each in inspect.signature(method).parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }

"""Dry run: user code on a few rows and one batch, in the user's process.

`Experiment.dry_run` and `Study.dry_run` call it. It runs the code of workers. `rows.py` preprocesses the first rows of
each split, `training.py` runs one batch through the models, `outcome.py` holds the result. Nothing is sent to the
cluster, temporary files are deleted, and global random states are restored. torch is imported only if there is a
`SubEpochSpec`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cerebro.client.dry_run.outcome import DryRun, StepTrial
from cerebro.client.dry_run.rows import non_finite_values, try_rows
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.data.fields import shape_text
from cerebro.errors import NonFiniteMetricError
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.techniques import Technique
from cerebro.usercode.encoding import encode
from cerebro.usercode.fitted import pack_fitted, restore_fitted
from cerebro.usercode.in_process import UserCode, generators_kept

__all__ = ["DryRun", "dry_run"]


def dry_run(
    record: ExperimentRecord,
    archive: Callable[[str], bytes],
    etl: ETLSpec,
    training: SubEpochSpec | None,
    hyperparams: Hyperparameters,
    *,
    rows: int,
    parallel_plans: Sequence[tuple[Technique, int]] = (),
) -> DryRun:
    """Run user code on a few rows; see `cerebro.Experiment.dry_run`.

    Args:
        record: record of the experiment.
        archive: returns a code archive by its hash.
        etl: ETL spec.
        training: training spec; `None` to try only rows.
        hyperparams: one configuration; ignored without `training`.
        rows: maximum number of rows per split.
        parallel_plans: techniques to try, each with a number of devices.

    Returns:
        Outcome of all steps.
    """
    if training is not None:
        # Import torch before `generators_kept`, because it has a global generator too.
        from cerebro.client.dry_run.training import TrainingTrial
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-dry-run-", ignore_cleanup_errors=True) as name,
        generators_kept(),
    ):
        folder = Path(name).resolve()
        # Encoded as for a worker, so that changes of `self` don't reach the notebook's objects.
        encoded = [encode(spec).encoded for spec in (etl, training) if spec is not None]
        code = UserCode(record=record, archive=archive, folder=lambda: folder)
        with code.importable():
            etl_spec, fitting = code.spec(encoded[0]), list[StepTrial]()
            row_trials = try_rows(etl_spec, record.locators, rows, folder, fitting.append)
            tried = {trial.split: trial for trial in row_trials}
            warnings = non_finite_values(tried)
            if training is None:
                skipped = {"training": "no SubEpochSpec was given"}
                return DryRun(
                    experiment=record.name,
                    rows=tried,
                    skipped=skipped,
                    steps=tuple(fitting),
                    warnings=tuple(warnings),
                )
            trained = code.spec(encoded[1])
            if fitting:
                trained.fitted = restore_fitted(pack_fitted(etl_spec.fitted))
            trial = TrainingTrial(trained, hyperparams, tried, folder / "training")
            try:
                trial.run()
            except NonFiniteMetricError as error:
                for text in warnings:
                    error.add_note(text)
                raise
            for technique, devices in parallel_plans:
                trial.try_technique(technique, devices)
    size = hyperparams["batch_size"]
    assert isinstance(size, int)
    source = tried.get("train") or next(iter(tried.values()))
    batch = min(size, source.rows)
    skipped = dict(trial.skipped)
    if batch < size:
        skipped["full batch"] = f"{batch} of batch_size {size} rows were tried: set rows={size} to try all"
    return DryRun(
        experiment=record.name,
        rows=tried,
        batch={field.name: f"{field.dtype} {shape_text((batch, *field.shape))}" for field in source.fields},
        device=str(trial.device),
        steps=(*fitting, *trial.steps),
        metrics=trial.metrics,
        parameters=trial.parameters,
        checkpoint_bytes=trial.checkpoint_bytes,
        skipped=skipped,
        warnings=(*warnings, *trial.warnings),
    )

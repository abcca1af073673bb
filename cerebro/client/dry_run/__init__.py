"""A dry run: user code called on a few rows and one batch in the process of its user, by the code that workers run.

Nothing is sent, nothing stays: not on the cluster, not on this machine but for what user code itself leaves, and the
global random generators are put back. torch is loaded only if there is something to train.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cerebro.client.dry_run.outcome import DryRun, TriedStep
from cerebro.client.dry_run.rows import try_rows
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.data.fields import shape_text
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
    """Try user code; see `cerebro.Experiment.dry_run`.

    Args:
        archive: bytes of a code archive by its hash.
        hyperparams: one configuration; not looked at without `training`.
        rows: of each split, at most.
        ways: techniques to try, each on so many devices.
    """
    if training is not None:
        # Before the generators are remembered: torch has one of its own.
        from cerebro.client.dry_run.training import TrainingTrial
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-dry-run-", ignore_cleanup_errors=True) as name,
        generators_kept(),
    ):
        folder = Path(name).resolve()
        # As they reach a worker; and what they change in themselves is not changed in the notebook.
        sent = [encode(spec).encoded for spec in (etl, training) if spec is not None]
        code = UserCode(record=record, archive=archive, folder=folder)
        with code.importable():
            preparing, fitting = code.spec(sent[0]), list[TriedStep]()
            found = try_rows(preparing, record.locators, rows, folder, fitting.append)
            tried = {each.split: each for each in found}
            if training is None:
                skipped = {"training": "no SubEpochSpec was given"}
                return DryRun(experiment=record.name, rows=tried, skipped=skipped, steps=tuple(fitting))
            trained = code.spec(sent[1])
            if fitting:
                trained.fitted = restore_fitted(pack_fitted(preparing.fitted))
            trial = TrainingTrial(trained, hyperparams, tried, folder / "training")
            trial.run()
            for technique, devices in parallel_plans:
                trial.try_technique(technique, devices)
    size = hyperparams["batch_size"]
    assert isinstance(size, int)
    used = tried.get("train") or next(iter(tried.values()))
    batch = min(size, used.rows)
    skipped = dict(trial.skipped)
    if batch < size:
        skipped["a whole batch"] = (
            f"{batch} rows were tried of batch_size {size}: rows={size} tries all of them"
        )
    return DryRun(
        experiment=record.name,
        rows=tried,
        batch={field.name: f"{field.dtype} {shape_text((batch, *field.shape))}" for field in used.fields},
        device=str(trial.device),
        steps=(*fitting, *trial.steps),
        metrics=trial.metrics,
        parameters=trial.parameters,
        checkpoint_bytes=trial.checkpoint_bytes,
        skipped=skipped,
        warnings=tuple(trial.warnings),
    )

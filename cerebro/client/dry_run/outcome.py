"""Result of a dry run, and its text. Plain records, filled by `rows.py`, `training.py` and `dry_run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.data.fields import Field, shape_text


@dataclass(frozen=True, kw_only=True)
class RowTrial:
    """Rows of one split that were preprocessed.

    Attributes:
        split: the split.
        rows: number of preprocessed rows.
        total: rows of the split; `None` if unknown without reading all.
        seconds: time for fetching objects and for the row function.
        fields: fields of a row.
        folder: partition with the rows, deleted after the dry run.
    """

    split: str
    rows: int
    total: int | None
    seconds: float
    fields: tuple[Field, ...]
    folder: Path = field(repr=False)

    @property
    def count(self) -> str:
        """Number of rows as text, such as ``8 of 1,297``."""
        return f"{self.rows:,}" if self.total is None else f"{self.rows:,} of {self.total:,}"


@dataclass(frozen=True, kw_only=True)
class StepTrial:
    """A method call, or a checkpoint that was saved and loaded."""

    name: str
    seconds: float
    outcome: str
    """Short text, such as metrics."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Result of `Experiment.dry_run`. It exists only if nothing failed; `repr` lists all steps.

    Attributes:
        experiment: name of the experiment.
        rows: preprocessed rows of each split.
        skipped: steps that were not tried, with the reason.
        batch: dtype and shape of each field of a batch, as text; empty without training.
        device: device of the modules.
        steps: calls, in order, with duration and outcome.
        metrics: metrics of `train` and `test`.
        parameters: number of learnable parameters; `None` without modules.
        checkpoint_bytes: size of the checkpoint; `None` without one.
        warnings: suspicious findings, such as training that changes no weight.
    """

    experiment: str
    rows: Mapping[str, RowTrial]
    skipped: Mapping[str, str]
    batch: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    steps: Sequence[StepTrial] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    checkpoint_bytes: int | None = None
    warnings: Sequence[str] = ()

    def __repr__(self) -> str:
        lines = [
            f"dry run of experiment {self.experiment!r}: nothing failed, nothing was sent to the cluster"
        ]
        lines += [
            f"  rows of {tried.split:<10} {tried.count}, {tried.seconds:.3f} s: "
            + ", ".join(f"{field.name} {field.dtype} {shape_text(field.shape)}" for field in tried.fields)
            for tried in self.rows.values()
        ]
        if self.batch:
            fields = ", ".join(f"{name} {form}" for name, form in self.batch.items())
            lines.append(f"  batch on {self.device:<9} {fields}")
        lines += [f"  {step.name:<18} {step.seconds:.3f} s: {step.outcome}" for step in self.steps]
        lines += [f"  warning: {text}" for text in self.warnings]
        lines += [f"  skipped: {step}: {reason}" for step, reason in self.skipped.items()]
        return "\n".join(lines)

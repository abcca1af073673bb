"""What a dry run found, and how a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.data.fields import Field, shape_text


@dataclass(frozen=True, kw_only=True)
class TriedRows:
    """Rows of one split that went through the row function.

    Attributes:
        rows: how many, of `of` that the split has; `None`: that is not known without reading all of them.
        seconds: for fetching their objects and for the row function.
        fields: what a row became.
        folder: of the partition made of them; gone when the dry run is over.
    """

    split: str
    rows: int
    of: int | None
    seconds: float
    fields: tuple[Field, ...]
    folder: Path = field(repr=False)

    @property
    def told(self) -> str:
        """How many rows, in words."""
        return f"{self.rows:,}" if self.of is None else f"{self.rows:,} of {self.of:,}"


@dataclass(frozen=True, kw_only=True)
class TriedStep:
    """A method that was called, or a checkpoint that was saved and loaded."""

    name: str
    seconds: float
    found: str
    """In words: metrics, say."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What `Experiment.dry_run` found; nothing failed, else there would be an error.

    Attributes:
        rows: per split.
        batch: shape and dtype of each field of a batch, as text; empty if nothing was trained.
        device: where modules were.
        steps: in the order in which they were done.
        metrics: what `train` and `test` returned.
        parameters: numbers that the modules learn; `None` if none were made.
        checkpoint_bytes: size of the checkpoint; `None` if none was saved.
        skipped: what was not tried -> why.
        warnings: what nothing fails by, and yet should be looked at, such as training that changes no weight.
    """

    experiment: str
    rows: Mapping[str, TriedRows]
    skipped: Mapping[str, str]
    batch: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    steps: Sequence[TriedStep] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    checkpoint_bytes: int | None = None
    warnings: Sequence[str] = ()

    def __repr__(self) -> str:
        lines = [
            f"dry run of experiment {self.experiment!r}: nothing failed, nothing was sent to the cluster"
        ]
        lines += [
            f"  rows of {tried.split:<10} {tried.told}, {tried.seconds:.3f} s: "
            + ", ".join(f"{field.name} {field.dtype} {shape_text(field.shape)}" for field in tried.fields)
            for tried in self.rows.values()
        ]
        if self.batch:
            told = ", ".join(f"{name} {found}" for name, found in self.batch.items())
            lines.append(f"  batch on {self.device:<9} {told}")
        lines += [f"  {step.name:<18} {step.seconds:.3f} s: {step.found}" for step in self.steps]
        lines += [f"  warning: {text}" for text in self.warnings]
        lines += [f"  skipped: {what}: {why}" for what, why in self.skipped.items()]
        return "\n".join(lines)

"""`Command`: a user's command to a run, its models or an experiment. Data only; see `command_events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cerebro.commands.rules import CommandKind
from cerebro.contract.search import OwnProcedure


@dataclass(frozen=True, kw_only=True)
class Command:
    """A user's command.

    Attributes:
        run: name of the run; by default `selection.target_run` selects it.
        models: models of that run, for commands to models.
        scheduler, planner: for `CommandKind.SET_SCHEDULER`.
        priority: for `CommandKind.PRIORITIZE`: a name or a number.
        confirm: for `CommandKind.DELETE`: the experiment's name, repeated.
        configurations: for `CommandKind.ADD_MODELS`: hyperparameters of each new model.
        hyperparams: for `CHANGE_MODEL` and `CLONE_MODEL`: the changed values.
        epochs: for `EXTEND_MODEL` and new models: total number of epochs. `None`: as the run, or the cloned model.
        procedure: for `RESUME_RUN`: replacement of a search's own procedure. `None` keeps it.
        at, warm: for `CLONE_MODEL`: whether the clone starts from a checkpoint of its parent, and which one; see
            `ParentCheckpoint`.
    """

    kind: CommandKind
    run: str | None = None
    models: tuple[str, ...] = ()
    scheduler: str = ""
    planner: bool = True
    priority: str | int = ""
    confirm: str = ""
    configurations: tuple[Mapping[str, Any], ...] = ()
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    procedure: OwnProcedure | None = None
    at: str | int = "last"
    warm: bool = False

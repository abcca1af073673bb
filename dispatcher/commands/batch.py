"""One command on several experiments, one after the other. Each succeeds or fails independently.

Only the list of experiments (`experiments.page`) calls it. Limits: 500 experiments and 15 s per form; the result
names the experiments that were skipped. Nothing is undone if a later experiment fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.errors import CerebroError, StoreUnavailableError
from dispatcher.commands.page import execute
from dispatcher.read_models.read_model import ReadModel
from dispatcher.services import Services

TIME_LIMIT_S = 15.0
"""Time limit in seconds for one form. Experiments not started by then are skipped."""
MAX_EXPERIMENTS = 500
"""Maximum number of experiments in one form."""
_MAX_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Result of a command: experiment names by outcome. `refused` has reasons, `skipped` were not tried."""

    done: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """True if the command succeeded for all."""
        return not self.refused and not self.skipped

    def to_text(self) -> str:
        """Return the result as text for a page."""
        total = len(self.done) + len(self.refused) + len(self.skipped)
        parts = [f"{len(self.done)} of {total} done{_name_list(self.done)}."]
        parts += [f"{name}: {why.rstrip('.')}." for name, why in self.refused[:_MAX_LISTED]]
        if len(self.refused) > _MAX_LISTED:
            parts.append(f"{len(self.refused) - _MAX_LISTED} more were refused.")
        if self.skipped:
            parts.append(f"Not tried, send the command again{_name_list(self.skipped)}.")
        return " ".join(parts)


def execute_all(services: Services, names: list[str], kind: CommandKind, by: str) -> Batch:
    """Execute a command on each experiment, until the time limit or the first call that the store does not answer."""
    deadline = services.monotonic() + TIME_LIMIT_S
    done: list[str] = []
    refused: list[tuple[str, str]] = []
    for tried, name in enumerate(names[:MAX_EXPERIMENTS]):
        if services.monotonic() >= deadline:
            return Batch(done=tuple(done), refused=tuple(refused), skipped=tuple(names[tried:]))
        try:
            for run in services.reader.read(name, lambda read_model: _runs(read_model, kind)):
                execute(services, name, Command(kind=kind, run=run), by)
        except StoreUnavailableError as error:
            refused.append(
                (name, f"the store stopped answering, so check if the command took effect: {error}")
            )
            return Batch(done=tuple(done), refused=tuple(refused), skipped=tuple(names[tried + 1 :]))
        except CerebroError as error:
            refused.append((name, str(error)))
        else:
            done.append(name)
    return Batch(done=tuple(done), refused=tuple(refused), skipped=tuple(names[MAX_EXPERIMENTS:]))


def _runs(read_model: ReadModel, kind: CommandKind) -> tuple[str, ...]:
    """Return ids of runs: all open ones to stop an experiment, else the first; an empty id without open runs."""
    found = [run.id for run in read_model.state.open_runs()]
    return tuple(found if kind is CommandKind.STOP_RUN else found[:1]) or ("",)


def _name_list(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f": {', '.join(names[:_MAX_LISTED])}{more}"

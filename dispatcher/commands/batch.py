"""One command on several experiments: each is done or refused by itself, and what became of each is said."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.errors import CerebroError, StoreUnavailableError
from dispatcher.commands.page import carry_out
from dispatcher.reading.read_model import ReadModel
from dispatcher.services import Services

BATCH_S = 15.0
"""How long one form may take; what is not begun by then is left."""
MOST = 500
"""Experiments that one form may name."""
_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What became of a command: names of experiments for which it was `done`, was `refused` (and why), and was not
    tried (`left`)."""

    done: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    left: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it was done for all."""
        return not self.refused and not self.left

    def told(self) -> str:
        """In sentences."""
        total = len(self.done) + len(self.refused) + len(self.left)
        parts = [f"{len(self.done)} of {total} done{_named(self.done)}."]
        parts += [f"{name}: {why.rstrip('.')}." for name, why in self.refused[:_NAMED]]
        if len(self.refused) > _NAMED:
            parts.append(f"{len(self.refused) - _NAMED} more were refused.")
        if self.left:
            parts.append(f"Not tried{_named(self.left)}.")
        return " ".join(parts)


def carry_out_all(services: Services, names: list[str], kind: CommandKind, by: str) -> Batch:
    """Carry a command out on each experiment, until the time is over or the store is away."""
    deadline = services.monotonic() + BATCH_S
    done: list[str] = []
    refused: list[tuple[str, str]] = []
    for tried, name in enumerate(names[:MOST]):
        if services.monotonic() >= deadline:
            return Batch(done=tuple(done), refused=tuple(refused), left=tuple(names[tried:]))
        try:
            for run in services.reader.look(name, lambda read_model: _runs(read_model, kind)):
                carry_out(services, name, Command(kind=kind, run=run), by)
        except StoreUnavailableError as error:
            refused.append((name, f"it is not known whether it was done: {error}"))
            return Batch(done=tuple(done), refused=tuple(refused), left=tuple(names[tried + 1 :]))
        except CerebroError as error:
            refused.append((name, str(error)))
        else:
            done.append(name)
    return Batch(done=tuple(done), refused=tuple(refused), left=tuple(names[MOST:]))


def _runs(read_model: ReadModel, kind: CommandKind) -> tuple[str, ...]:
    """Ids of the runs that the command is about: all open ones, to stop an experiment; none means its newest."""
    found = [run.id for run in read_model.state.open_runs()]
    return tuple(found if kind is CommandKind.STOP_RUN else found[:1]) or ("",)


def _named(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f": {', '.join(names[:_NAMED])}{more}"

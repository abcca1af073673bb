"""What a form asks for, and the events that this is: one, or one for each model that was chosen. Pure.

What is allowed is `cerebro.commands.steering`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.commands.steering import OF_EXPERIMENT, OF_MODEL, Action, event_of
from cerebro.contract.events import ClientEvent
from cerebro.errors import BadRequestError, NotFoundError
from cerebro.state import ExperimentState

_QUOTED = 60
"""Characters of what was sent that a message repeats."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What somebody asked for. `models`: of `run`, for actions of models; the rest for the actions that name them."""

    action: Action
    run: str = ""
    models: tuple[str, ...] = ()
    scheduler: str = ""
    planner: bool = False
    confirm: str = ""

    @classmethod
    def parse(cls, fields: Mapping[str, str], models: tuple[str, ...] = ()) -> Wish:
        """Take what a browser sent.

        Raises:
            BadRequestError: the action is none.
        """
        name = fields.get("action", "")
        if name not in set(Action):
            raise BadRequestError(f"there is no action {name[:_QUOTED]!r}; there are {', '.join(Action)}")
        return cls(
            action=Action(name),
            run=fields.get("run", ""),
            models=tuple(dict.fromkeys(models)),
            scheduler=fields.get("scheduler", "")[:_QUOTED],
            planner=fields.get("planner", "") in ("1", "on", "true"),
            confirm=fields.get("confirm", "").strip(),
        )


def events_of(wish: Wish, state: ExperimentState, by: str) -> tuple[ClientEvent, ...]:
    """The events that a wish is.

    Raises:
        ConflictError, NotFoundError, SearchSpaceError: the state does not allow it, for any one of the models; nothing
            is to be sent then.
        BadRequestError: no model was chosen.
    """
    if wish.action in OF_EXPERIMENT:
        return (event_of(wish.action, state, by=by, confirm=wish.confirm),)
    run = state.runs.get(wish.run)
    if run is None:
        there = ", ".join(state.runs) or "none yet"
        raise NotFoundError(f"{state.name} has no run {wish.run[:_QUOTED]!r}; there is {there}")
    if wish.action not in OF_MODEL:
        return (event_of(wish.action, state, run, by=by, scheduler=wish.scheduler, planner=wish.planner),)
    if not wish.models:
        raise BadRequestError("no model was chosen: tick one or more, then press the button again")
    return tuple(event_of(wish.action, state, run, model[:_QUOTED], by=by) for model in wish.models)

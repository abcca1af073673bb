"""Wire format of reports and actions, between the controller's search source and a worker with a user's own procedure.

The log of a search (its reports, and the actions after each) is one text: JSON lines, zlib-compressed because
the lines are similar, then base64.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import TypeAdapter

from cerebro.contract.search_tasks import (
    Actions,
    AddAction,
    ExtendAction,
    FinishAction,
    StopAction,
    SuggestAction,
)
from cerebro.search.procedure import Action, Add, Extend, Finish, Report, Stop, Suggest

_REPORTS: dict[str, Any] = {each.__name__: each for each in get_args(Report)}
_ACTIONS: dict[type, Any] = {
    Suggest: SuggestAction,
    Add: AddAction,
    Extend: ExtendAction,
    Stop: StopAction,
    Finish: FinishAction,
}
_OF_DATA: dict[type, Any] = {data: action for action, data in _ACTIONS.items()}
_DATA: TypeAdapter[Actions] = TypeAdapter(Actions)


def action_data(action: Action) -> Any:
    """Convert an action to its wire model.

    Raises:
        ValueError: a field has a wrong type, or a number is not finite.
    """
    if isinstance(action, Add):
        for name, value in action.hyperparams.items():
            if not _is_finite(value):
                raise ValueError(f"its value of {name!r} is {value!r}, expected finite numbers")
    return _ACTIONS[type(action)](**vars(action))


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def action_of(data: Any) -> Action:
    """Convert a wire model to an action."""
    action: Action = _OF_DATA[type(data)](
        **{name: getattr(data, name) for name in type(data).model_fields if name != "kind"}
    )
    return action


def report_line(report: Report) -> str:
    """Serialize a report as one line."""
    return json.dumps([type(report).__name__, vars(report)])


def actions_line(actions: Actions) -> str:
    """Serialize the actions after one report as one line."""
    return _DATA.dump_json(actions).decode()


def packed(reports: Sequence[str], actions: Sequence[str]) -> str:
    """Compress the lines into one text.

    The first of `actions` follows `begin`, the others follow `reports`. The last reports may have no actions
    yet.
    """
    text = "\n".join([str(len(actions)), *actions, *reports])
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def unpacked(text: str) -> tuple[list[Report], list[Actions]]:
    """Return the reports and actions of a text from `packed`."""
    count, *lines = zlib.decompress(base64.b64decode(text)).decode().split("\n")
    known = int(count)
    reports = []
    for line in lines[known:]:
        name, fields = json.loads(line)
        reports.append(_REPORTS[name](**fields))
    return reports, [_DATA.validate_json(line) for line in lines[:known]]

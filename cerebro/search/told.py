"""Reports and orders as they travel between the controller and the worker that runs a user's own procedure.

A search is told one thing after another: that it begins, then each report. What was told, and what the procedure
ordered at it, is one text of JSON lines, compressed: lines of a search are much alike.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import TypeAdapter

from cerebro.contract.search_questions import (
    AddOrder,
    DrawOrder,
    ExtendOrder,
    FinishOrder,
    Orders,
    StopOrder,
)
from cerebro.search.procedure import Add, Draw, Extend, Finish, Order, Report, Stop

_REPORTS: dict[str, Any] = {each.__name__: each for each in get_args(Report)}
_ORDERS: dict[type, Any] = {
    Draw: DrawOrder,
    Add: AddOrder,
    Extend: ExtendOrder,
    Stop: StopOrder,
    Finish: FinishOrder,
}
_OF_DATA: dict[type, Any] = {data: order for order, data in _ORDERS.items()}
_DATA: TypeAdapter[Orders] = TypeAdapter(Orders)


def order_data(order: Order) -> Any:
    """An order as it travels.

    Raises:
        ValueError: a field is not what it is to be, or a value cannot travel as it is.
    """
    if isinstance(order, Add):
        for name, value in order.hyperparams.items():
            if not _is_finite(value):
                raise ValueError(f"its value of {name!r} is {value!r}, expected finite numbers")
    return _ORDERS[type(order)](**vars(order))


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def order_of(data: Any) -> Order:
    """An order as procedures have it."""
    made: Order = _OF_DATA[type(data)](
        **{name: getattr(data, name) for name in type(data).model_fields if name != "kind"}
    )
    return made


def report_line(report: Report) -> str:
    """A report as a line."""
    return json.dumps([type(report).__name__, vars(report)])


def orders_line(orders: Orders) -> str:
    """What was ordered at one thing that was told, as a line."""
    return _DATA.dump_json(orders).decode()


def packed(reports: Sequence[str], orders: Sequence[str]) -> str:
    """Lines as one text. The first of `orders` are those of the beginning; there may be fewer than were told."""
    text = "\n".join([str(len(orders)), *orders, *reports])
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def unpacked(text: str) -> tuple[list[Report], list[Orders]]:
    """What `packed` made one text of."""
    count, *lines = zlib.decompress(base64.b64decode(text)).decode().split("\n")
    known = int(count)
    reports = []
    for line in lines[known:]:
        name, fields = json.loads(line)
        reports.append(_REPORTS[name](**fields))
    return reports, [_DATA.validate_json(line) for line in lines[:known]]

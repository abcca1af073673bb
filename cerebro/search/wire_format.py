"""Wire format of reports and orders, for a worker with a user's own procedure.

The log of a search (its reports, and the orders after each) is one text: JSON lines, zlib-compressed because
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
    """Convert an order to its wire model.

    Raises:
        ValueError: a field has a wrong type, or a number is not finite.
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
    """Convert a wire model to an order."""
    order: Order = _OF_DATA[type(data)](
        **{name: getattr(data, name) for name in type(data).model_fields if name != "kind"}
    )
    return order


def report_line(report: Report) -> str:
    """Serialize a report as one line."""
    return json.dumps([type(report).__name__, vars(report)])


def orders_line(orders: Orders) -> str:
    """Serialize the orders after one report as one line."""
    return _DATA.dump_json(orders).decode()


def packed(reports: Sequence[str], orders: Sequence[str]) -> str:
    """Compress the lines into one text.

    The first of `orders` follows `begin`, the others follow `reports`. The last reports may have no orders
    yet.
    """
    text = "\n".join([str(len(orders)), *orders, *reports])
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def unpacked(text: str) -> tuple[list[Report], list[Orders]]:
    """Return the reports and orders of a text from `packed`."""
    count, *lines = zlib.decompress(base64.b64decode(text)).decode().split("\n")
    known = int(count)
    reports = []
    for line in lines[known:]:
        name, fields = json.loads(line)
        reports.append(_REPORTS[name](**fields))
    return reports, [_DATA.validate_json(line) for line in lines[:known]]

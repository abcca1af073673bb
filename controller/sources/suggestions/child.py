"""The process that draws: ``python -m controller.sources.suggestions.child``. A question a line in, an answer a line
out.

A process of its own because samplers bring libraries of 30 MB and more, and a draw may take seconds, for which nobody
else is to wait. It keeps nothing from one question to the next.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cerebro.contract.search_questions import DrawQuestion
from cerebro.errors import SearchError
from cerebro.search.questions import values_for


def reply(question: str) -> dict[str, Any]:
    """To a `DrawQuestion` in JSON: the values, or why there are none."""
    try:
        return {"values": values_for(DrawQuestion.model_validate_json(question))}
    except SearchError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - of a library: told, and the run waits for a user
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer until standard input ends, which it does when the controller does."""
    for line in sys.stdin:
        print(json.dumps(reply(line)), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

"""The process that computes suggestions: ``python -m controller.sources.suggestions.child``.

Each line of input is a request, each line of output its answer. A separate process, because samplers load
libraries of 30 MB and more and may take seconds. It keeps no state between requests. Random samples are drawn in the
controller's loop instead, and requests whose library the control image lacks go to a worker.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cerebro.contract.search_tasks import SuggestionsRequest
from cerebro.errors import SearchError
from cerebro.search.suggestions import values_for


def reply(request: str) -> dict[str, Any]:
    """Return the values for a `SuggestionsRequest` in JSON, or an error."""
    try:
        return {"values": values_for(SuggestionsRequest.model_validate_json(request))}
    except SearchError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - of a library; the controller pauses the run
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer requests until standard input ends. The controller also kills this process when it is idle or late."""
    for line in sys.stdin:
        print(json.dumps(reply(line)), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

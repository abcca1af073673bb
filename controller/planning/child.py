"""The planner's child process: ``python -m controller.planning.child``, started by `SpawnedProcess`.

Each line of input is a request, each line of output its answer, as JSON; it keeps no state between them. A separate
process, because planning in Python would block the controller, and a solver's memory is freed at its exit. It has a
low priority: training goes first.
"""

from __future__ import annotations

import json
import sys

from controller.planning.answering import answer


def main() -> None:
    """Answer requests until standard input ends, as it does when the controller ends."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a plan is optional: report the error, and dispatch continues
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

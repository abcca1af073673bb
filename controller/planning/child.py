"""The planner process's helper process: ``python -m controller.planning.child``. A question a line in, an answer
a line out.

A process of its own because planning is pure Python that would hold the controller up, and because a solver's memory
goes back when it ends. It is started with a niceness: training goes first.
"""

from __future__ import annotations

import json
import sys

from controller.planning.answering import answer


def main() -> None:
    """Answer until standard input ends, which it does when the controller does."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a plan is never needed: what went wrong is told and dispatch goes on
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

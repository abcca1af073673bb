"""Find the failure rule that matches a text: ``python -P -m cerebro.worker.health.rule_matching``.

`failure_rules` starts this program and kills it after its time limit, because only that stops a regular expression that
takes forever. The process prints a line for each pattern, which shows the slow one. It imports few modules, so it
starts quickly, and takes at most 512 MiB.
"""

from __future__ import annotations

import json
import re
import resource
import sys

MEMORY_BYTES = 512 << 20
"""Limit of the process's address space."""


def main() -> None:
    """Match patterns with a text, for one request ``{"text", "patterns"}`` on standard input.

    Prints a start line, then one JSON line per pattern up to the first match: the start and end of the
    matching line, null without a match, or false for an invalid pattern.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    question = json.load(sys.stdin)
    text = question["text"]
    _say("begins")
    for pattern in question["patterns"]:
        try:
            found = re.compile(pattern, re.MULTILINE).search(text)
        except (re.error, RecursionError, OverflowError):
            answer: object = False
        else:
            answer = found and [text.rfind("\n", 0, found.start()) + 1, _end(text, found.start())]
        _say(answer)
        if answer:
            return


def _say(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def _end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


if __name__ == "__main__":
    main()

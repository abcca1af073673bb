"""Match an attempt's failure with failure rules, using its log and its error.

The agent's `execution` calls `apply_rules` before it reports a failure. Rules are regular expressions of the cluster,
the run and `BUILT_IN`; the first match labels the failure, and its action may end the attempts or quarantine the
worker. Only the last 64 KiB of the log count. Each rule has 2 s in a separate process (`rule_matching`).
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cerebro.contract.failure_rules import FailureRule, MatchedRule, shown
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.worker.agent.settings import SECRETS

log = logging.getLogger(__name__)

_Answer = list[int] | Literal[False] | None
"""Answer of `rule_matching`."""

LOG_BYTES = 64 << 10
"""Number of final bytes of a log to search."""
LIMIT_S = 2.0
"""Seconds before a rule is cut off."""
START_S = 20.0
"""Seconds the matching process may take to start, on a busy machine."""
MAX_LATE = 3
"""Maximum slow rules; after that no further rules are tried."""

BUILT_IN = (
    FailureRule(
        name="shared memory is full", pattern=r"killed by signal: Bus error|/dev/shm\S* .*No space left"
    ),
    FailureRule(name="disk is full", pattern=r"No space left on device|Disk quota exceeded"),
    FailureRule(name="too many open files", pattern=r"Too many open files"),
    FailureRule(name="package is missing", pattern=r"^(ModuleNotFoundError|ImportError): "),
    FailureRule(name="library is missing", pattern=r"cannot open shared object file|undefined symbol: "),
    FailureRule(
        name="host memory", pattern=r"Cannot allocate memory|can't allocate memory: you tried to allocate"
    ),
    FailureRule(name="NCCL", pattern=r"nccl(System|Internal|Remote|UnhandledCuda)Error|NCCL WARN "),
    FailureRule(name="network", pattern=r"Connection (refused|timed out)|Name or service not known"),
)
"""Labels of frequent failures. `device_errors` handles machine faults, with exceptions and not only texts."""


def apply_rules(
    failure: Failure, path: Path, rules: Sequence[FailureRule], *, limit_s: float = LIMIT_S
) -> Failure:
    """Add the first matching rule to a failure. A quarantining rule makes it a `DEVICE` failure.

    Args:
        path: the attempt's log.
        rules: the cluster's rules, then the run's; built-in ones follow.
        limit_s: seconds before each rule is cut off.
    """
    if not failure.kind.traits.uses_failure_rules:
        return failure
    text, known = f"{end_of(path)}\n{failure.text}\n", (*rules, *BUILT_IN)
    rule, line, late = _found(text, known, limit_s)
    changes: dict[str, object] = {"late_rules": late}
    if rule is not None:
        changes["rule"] = MatchedRule(name=rule.name, action=rule.action, line=shown(line))
        if rule.action == "quarantine":
            changes["kind"] = FailureKind.DEVICE
    return failure.model_copy(update=changes)


def end_of(path: Path, num_bytes: int = LOG_BYTES) -> str:
    """Return the end of a log, or "" without a log."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read(num_bytes).decode(errors="replace")
    return ""


def _found(
    text: str, rules: Sequence[FailureRule], limit_s: float
) -> tuple[FailureRule | None, str, tuple[str, ...]]:
    """Return the first matching rule, its line, and the names of slow rules."""
    late: list[str] = []
    first = 0
    while first < len(rules) and len(late) < MAX_LATE:
        answers, is_late = _query_matcher(text, [rule.pattern for rule in rules[first:]], limit_s)
        for rule, answer in zip(rules[first:], answers, strict=False):
            if answer is False:
                log.warning("failure rule %r is no regular expression here: %s", rule.name, rule.pattern)
            elif answer:
                begin, end = answer
                return rule, text[begin:end], tuple(late)
        first += len(answers) + 1
        if is_late and first <= len(rules):
            rule = rules[first - 1]
            late.append(rule.name)
            log.warning("failure rule %r took too long: it was cut off after %g s", rule.name, limit_s)
    return None, "", tuple(late)


def _query_matcher(text: str, patterns: Sequence[str], limit_s: float) -> tuple[list[_Answer], bool]:
    """Return the process's answers, and True if it still owed one when it ended."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    command = with_parent_death_signal([sys.executable, "-P", "-m", "cerebro.worker.health.rule_matching"])
    # Memory, because the folder for temporary files may be full.
    with os.fdopen(os.memfd_create("question"), "w+b") as question:
        question.write(json.dumps({"text": text, "patterns": list(patterns)}).encode())
        question.seek(0)
        process = subprocess.Popen(
            command, stdin=question, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    with process:
        assert process.stdout is not None
        lines = _lines(process.stdout.fileno(), limit_s)
        if next(lines, None) is None:
            process.kill()
            log.warning("failure rules were not tried: their process did not start within %g s", START_S)
            return [None] * len(patterns), False
        answers = [json.loads(line) for line in lines]
        process.kill()
    # It may also have died without an answer, for lack of memory: skip that rule, too.
    return answers, len(answers) < len(patterns) and not (answers and answers[-1])


def _lines(descriptor: int, limit_s: float) -> Iterator[bytes]:
    """Yield lines of a process until it ends or exceeds its time; the first line has `START_S`."""
    poll, buffer, deadline = select.poll(), b"", time.monotonic() + START_S
    poll.register(descriptor, select.POLLIN)
    while True:
        if not poll.poll(max(0.0, 1000.0 * (deadline - time.monotonic()))):
            return
        if not (read := os.read(descriptor, 1 << 16)):
            return
        *lines, buffer = (buffer + read).split(b"\n")
        yield from lines
        if lines:
            deadline = time.monotonic() + limit_s

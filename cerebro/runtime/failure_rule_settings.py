"""Failure rules of the cluster, from the environment variable ``CEREBRO_FAILURE_RULES``.

A worker's settings parse it at start, and `cerebro.local.cluster` before it starts workers. Rules of a run are part of
its request; `cerebro.worker.health.failure_rules` applies both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cerebro.contract import failure_rules
from cerebro.contract.failure_rules import FailureRule
from cerebro.errors import ClusterError, DataError

FAILURE_RULES = "CEREBRO_FAILURE_RULES"


def cluster_rules(environment: Mapping[str, str]) -> tuple[FailureRule, ...]:
    """Parse the variable: a JSON list of objects with ``name``, ``pattern`` and ``action``. Unset: no rules.

    Raises:
        ClusterError: the list is invalid. The message has the rule's number and the position in its pattern.
    """
    text = environment.get(FAILURE_RULES, "")
    if not text:
        return ()
    try:
        return failure_rules.checked(json.loads(text), FAILURE_RULES)
    except json.JSONDecodeError as error:
        raise ClusterError(f"{FAILURE_RULES} is no JSON: {error}; expected a list of rules") from error
    except DataError as error:
        raise ClusterError(f"{error} (worker.failureRules of the chart)") from error

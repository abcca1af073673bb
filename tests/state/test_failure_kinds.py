"""Traits of failure kinds: combinations that would contradict each other."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from cerebro.contract.tasks.failures import Failure, FailureKind

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", list(FailureKind))
def test_traits_of_a_failure_kind_are_consistent(kind: FailureKind) -> None:
    """The fold and the worker rely on each of these."""
    traits = kind.traits
    if traits.retry == "free":  # the task isn't the cause
        assert not traits.fails_run
        assert not traits.uses_failure_rules  # "no_retry" would have no effect
        assert not traits.may_be_worker
        assert traits.plan == "keep"
    if traits.retry == "elsewhere":
        assert traits.may_be_worker
    if traits.fails_run:
        assert traits.retry == "no"
    if traits.keeps_processes:
        assert not traits.is_unexplained
        assert not traits.may_be_kernel_kill
        assert traits.savepoint != "discard_if_repeated"


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failure_kind_is_serialized_as_its_value(kind: FailureKind) -> None:
    """Its traits are in no event, file or metric."""
    failure = Failure(kind=kind, message="boom")
    assert f'"kind":"{kind.value}"' in failure.model_dump_json()
    assert Failure.model_validate_json(failure.model_dump_json()).kind is kind
    assert pickle.loads(pickle.dumps(kind)) is copy.deepcopy(kind) is kind


@pytest.mark.parametrize("kind", list(FailureKind))
def test_the_monitoring_page_lists_every_failure_kind(kind: FailureKind) -> None:
    """It is a label value of `cerebro_worker_attempts_total`."""
    [row] = [
        line
        for line in (ROOT / "docs" / "monitoring.md").read_text().splitlines()
        if "`cerebro_worker_attempts_total`" in line
    ]
    assert kind.value in row.replace(",", " ").split()

"""How the selftest judges a run, and when it refuses to start."""

from __future__ import annotations

import numpy as np
import pytest

from cerebro.client.selftest import specs
from cerebro.client.selftest.trial import TrialError, _new_name, check

SUB_EPOCHS = [
    (model, epoch, partition) for model in ("m00", "m01") for epoch in (1, 2) for partition in (0, 1)
]


def test_selftests_that_start_together_have_different_names() -> None:
    """With one name, the second would meet the run of the first."""
    assert len({_new_name() for _ in range(20)}) > 10


def test_a_run_with_each_sub_epoch_committed_once_passes_the_check() -> None:
    """In any order."""
    check(list(reversed(SUB_EPOCHS)), set(SUB_EPOCHS), accuracy=0.9)


@pytest.mark.parametrize(
    ("committed", "said"),
    [
        (SUB_EPOCHS[1:], "of 8 sub-epochs 1 were not committed, 0 more than once, and 0 were unexpected"),
        ([*SUB_EPOCHS, SUB_EPOCHS[3]], "0 were not committed, 1 more than once"),
        ([*SUB_EPOCHS[1:], SUB_EPOCHS[1]], "1 were not committed, 1 more than once"),
        ([*SUB_EPOCHS, ("m02", 1, 0)], "and 1 were unexpected"),
        ([], "of 8 sub-epochs 8 were not committed"),
    ],
)
def test_a_run_with_other_sub_epochs_fails_the_check(
    committed: list[tuple[str, int, int]], said: str
) -> None:
    """Missing, double and foreign sub-epochs are counted."""
    with pytest.raises(TrialError, match=said):
        check(committed, set(SUB_EPOCHS), accuracy=0.9)


def test_a_run_that_learned_nothing_fails_the_check() -> None:
    """Committed sub-epochs prove nothing if the weights never change."""
    with pytest.raises(TrialError, match=r"accuracy is 0\.260, expected at least 0\.6"):
        check(SUB_EPOCHS, set(SUB_EPOCHS), accuracy=0.26)


def test_pictures_differ_by_class_but_not_by_their_mean() -> None:
    """The brighter quarter is the class; all pictures have the same mean."""
    generator = np.random.default_rng(0)
    half = specs.SIDE // 2
    for label in range(specs.CLASSES):
        mean = np.mean([specs.picture(label, generator) for _ in range(200)], axis=0)
        quarters = mean.reshape(2, half, 2, half).mean(axis=(1, 3)).ravel()
        assert quarters.argmax() == label
        assert abs(mean.mean() - 0.9 / 4) < 0.05

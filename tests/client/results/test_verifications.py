"""A fit's table of verified sub-epochs."""

from __future__ import annotations

from cerebro.cli.experiments.status import state_lines
from cerebro.runtime.volumes import Volumes
from tests.client.results.fits import fit_result
from tests.state.stories import sub_epoch
from tests.state.test_verifications import Verified


def test_the_verifications_have_a_row_per_repeated_sub_epoch(volumes: Volumes) -> None:
    """With both workers, the outcome and the wrong worker; unverifiable sub-epochs are counted by reason."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    story.reexecution(sub_epoch(1, 0), 1)
    story.trains(sub_epoch(1, 1), 0)
    story.reexecution(sub_epoch(1, 1), 1, digest="b" * 16, differs=True)
    story.reexecution(sub_epoch(1, 1), 2, digest="b" * 16, differs=True)
    for name in ("worker-1", "worker-2"):
        story.state.workers[name].replicas = set()
    story.trains(sub_epoch(2, 0), 0)
    found = fit_result(story, volumes).verifications()
    assert list(found["state"]) == ["equal", "judged"]
    assert list(found["sub_epoch"]) == [0, 1]
    assert list(found["wrong"]) == ["", "worker-0"]
    assert list(found["reexecuted_by"]) == [("worker-1",), ("worker-1", "worker-2")]
    assert list(found["exact"]) == [True, True]
    assert found["note"][0] == "equal to the bit on worker-1"
    assert found.attrs["unverified"] == {"no other worker held the partition": 1}
    lines = state_lines(story.state, now=story.time)
    assert "  verification: 1 equal, 1 differs, 1 not verified (no other worker held the partition)" in lines
    assert any(line.startswith("  fit-1/train/m00/e1/p1: worker-0 computed wrongly") for line in lines)

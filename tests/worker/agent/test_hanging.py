"""Hang detection tells busy from idle attempts by their activity and earlier batch times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.worker.health.hang_detection import Activity, Phase, Use, Verdict, Watch, limit_s, verdict

IDLE, BUSY = Use(cores=0.01, gpu=0.0, runnable=0.0), Use(cores=0.9, gpu=0.0, runnable=1.0)
SECONDS = st.floats(0.001, 5000)


class Attempt:
    """An attempt watched as by the agent, with simulated time."""

    def __init__(self, cap_s: float = 600.0, *, is_for_all: bool = False) -> None:
        self.watch, self.now, self.batch, self.spent_s = Watch(cap_s, 0.0, is_for_all), 0.0, 0, 0.0
        self.looks = 0

    def quiet(self, seconds: float, *, cores: float = 0.0, gpu: float = 0.0, runs: bool = False) -> Verdict:
        """Advance the time without a batch; return the verdict."""
        end = self.now + seconds
        while (due := self.now + self.watch.due_s(self.now)) <= end:
            self.spent_s += cores * (due - self.now)
            self.now = due
            self.looks += 1
            found = self.watch.check(due, Activity(spent_s={7: self.spent_s}, gpu=gpu, is_runnable=runs))
            if found != "goes on":
                return found
        self.spent_s += cores * (end - self.now)
        self.now = end
        return "goes on"

    def come(self, *, is_last: bool = False) -> None:
        """Report the next batch."""
        self.batch += 1
        self.watch.advance(self.now, batch=self.batch, is_last=is_last)

    def train(self, batches: int, seconds: float) -> None:
        """Report `batches` batches of the given duration."""
        for _ in range(batches):
            assert self.quiet(seconds, cores=1.0) == "goes on"
            self.come()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.01, 599), min_size=40, max_size=40),
    st.sampled_from(("processor", "GPU", "starved")),
)
def test_no_false_hang_in_1000_slow_but_busy_batches(times: list[float], what: str) -> None:
    """25 sequences of 40 batches up to the run's limit: busy on a processor or GPU, or starved."""
    attempt = Attempt()
    for seconds in times:
        busy = {"cores": 0.06} if what == "processor" else {"gpu": 0.02} if what == "GPU" else {}
        assert attempt.quiet(seconds, **busy, runs=what == "starved") == "goes on"
        attempt.come()


@given(st.floats(0.2, 5000), st.lists(SECONDS, max_size=50), st.sampled_from(("first", "between", "last")))
def test_a_limit_is_the_run_s_at_most(cap_s: float, batches: list[float], phase: Phase) -> None:
    """It is at least 20 median batches, 60 s and a tenth of the run's limit, but never above that.

    Before the first and after the last batch the run's limit applies.
    """
    found = limit_s(cap_s, phase, batches)
    assert found <= cap_s
    assert found >= min(cap_s, max(60.0, cap_s / 10))
    if phase != "between" or not batches:
        assert found == cap_s
    else:
        assert found >= min(cap_s, 20 * sorted(batches)[len(batches) // 2])


@given(SECONDS, SECONDS, st.floats(0, 8), st.floats(0, 1), st.floats(0, 1))
def test_a_hang_verdict_stays_with_longer_silence(
    quiet_s: float, cap_s: float, cores: float, gpu: float, runnable: float
) -> None:
    """A busy attempt may take three times the limit of an idle one, and at least the run's limit."""
    use = Use(cores=cores, gpu=gpu, runnable=runnable)
    for limit in (cap_s, cap_s / 5):
        found = verdict(quiet_s=quiet_s, limit=limit, cap_s=cap_s, use=use)
        if quiet_s < limit:
            assert found == "goes on"
        elif not use.is_busy:
            assert found == "idle"
        else:
            assert (found == "busy") == (quiet_s >= max(cap_s, 3 * limit))
        later = verdict(quiet_s=2 * quiet_s, limit=limit, cap_s=cap_s, use=use)
        assert found in ("goes on", later)


@pytest.mark.parametrize(("seconds", "limit"), [(0.5, 60.0), (5.0, 100.0), (40.0, 600.0)])
def test_an_idle_attempt_is_found_at_its_limit(seconds: float, limit: float) -> None:
    """The detection is late by at most one check."""
    attempt = Attempt()
    attempt.train(30, seconds)
    began = attempt.now
    assert attempt.quiet(5000) == "idle"
    assert attempt.now - began == pytest.approx(limit)


def test_an_attempt_that_stops_computing_is_found_soon() -> None:
    """It was busy beyond its limit and then became idle."""
    attempt = Attempt()
    attempt.train(10, 1.0)
    assert attempt.quiet(200, cores=1.0) == "goes on"
    stopped = attempt.now
    assert attempt.quiet(5000) == "idle"
    assert attempt.now - stopped <= 45


def test_an_attempt_that_computes_for_ever_is_ended() -> None:
    """It ends after three times the limit, and not before the run's limit."""
    for trained, latest in ((0, 1800.0), (10, 600.0)):
        attempt = Attempt()
        attempt.train(trained, 1.0)
        began = attempt.now
        assert attempt.quiet(5000, cores=1.0, runs=True) == "busy"
        assert latest <= attempt.now - began <= latest + 5


def test_an_attempt_with_an_overall_limit_ends_at_the_limit() -> None:
    """Trials have one overall limit without activity checks."""
    attempt = Attempt(30.0, is_for_all=True)
    assert attempt.quiet(29, cores=1.0) == "goes on"
    assert attempt.quiet(2, cores=1.0) == "idle"
    assert attempt.looks == 1

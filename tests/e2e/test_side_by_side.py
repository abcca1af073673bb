"""Two people use one cluster at the same time."""

from __future__ import annotations

import pytest

from cerebro.errors import ConflictError
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow


def test_another_experiment_continues_during_a_blocked_run(lab: Lab, prepared: str) -> None:
    """One run's sub-epoch is blocked while another experiment preprocesses on the other worker.

    Both end with the results of a run alone.
    """
    first = lab.attach(prepared)
    held = lab.fit(first, TinyTraining(gate=lab.gate.port, holds=[("a", 1)]), tags="a")
    lab.gate.knock()
    other = lab.experiment()
    etl = lab.spawn(lambda: other.run_etl(TinyETL(), progress=False))
    lab.log(other).until_type("TaskCommitted")
    assert not held.done()
    lab.gate.open()
    lab.result(etl, other)
    fits = [(first, held), (other, lab.fit(other, TinyTraining(), tags="ab"))]
    for experiment, running in fits:
        assert lab.result(running, experiment).failures() == {}
        lab.check(experiment)


def test_an_earlier_fit_is_tested_while_another_fit_trains(lab: Lab, prepared: str) -> None:
    """From another notebook, with the numbers of a separate test.

    Models in training cannot be tested; the fit ends as it would alone.
    """
    mine, other = lab.attach(prepared), lab.attach(prepared)
    first = lab.result(lab.fit(mine, TinyTraining(), tags="ab", epochs=1), mine)
    alone = mine.run_test(["m00", "m01"], split="valid", progress=False)
    predicted = mine.run_predict(split="valid", progress=False)
    held = lab.fit(mine, TinyTraining(gate=lab.gate.port, holds=[("a", 0)]), tags="a")
    lab.gate.knock()
    ended = rf"is not finished; name a fit run that has ended \(fit='{first.run}'\)"
    with pytest.raises(ConflictError, match=ended):
        other.run_test("m00", split="valid", progress=False)
    beside = other.run_test(["m00", "m01"], fit=first.run, split="valid", progress=False)
    assert beside.equals(alone)
    assert other.run_predict(fit=first.run, split="valid", progress=False).equals(predicted)
    assert not held.done()
    lab.gate.open()
    assert lab.result(held, mine).failures() == {}
    lab.check(mine)

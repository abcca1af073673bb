"""Two people on one cluster: nobody waits for the other's end."""

from __future__ import annotations

import pytest

from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow


def test_another_experiment_goes_on_beside_a_run(lab: Lab, prepared: str) -> None:
    """A unit of one run is held in the middle. Meanwhile another experiment preprocesses on the other worker; then both
    end as they would have alone."""
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

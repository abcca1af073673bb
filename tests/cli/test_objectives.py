"""Commands show all objectives."""

from __future__ import annotations

from cerebro.cli.administration.queue import _models_json
from cerebro.cli.experiments.status import _model_lines
from tests.state.objective_stories import story_of


def test_status_lists_objectives_and_fronts() -> None:
    """The table has a column for each objective; the JSON has rank, feasibility and values."""
    story = story_of()
    lines = _model_lines(story.state, story.run, 20)
    assert lines[0] == "  best model: m02 of fit-1, accuracy 0.9 at epoch 1"
    assert "ACCURACY  MODEL_BYTES" in lines[1]
    assert lines[2].endswith("best, front 1")
    assert lines[5].endswith("violates a constraint")
    models = _models_json(story.run, None)["models"]
    assert [each["rank"] for each in models] == [1, 1, 2, 3, 4, None]
    assert [each["is_feasible"] for each in models] == [True, True, True, False, False, None]
    assert models[0]["values"] == {"accuracy": 0.9, "model_bytes": 50.0}

"""A fit run to report of: twenty models, one of which failed, with names as unkind as users can make them."""

from __future__ import annotations

import math
from random import Random

from cerebro.contract.records import ExperimentRecord, Hyperparameters, Locator, Locators
from cerebro.contract.tasks import FailureKind
from tests.state.stories import Story, unit

NASTY = "<script>alert(1)</script>"

RECORD = ExperimentRecord(
    name="one",
    locators=Locators(
        train=Locator(metadata=f"s3://bucket/{NASTY}.csv", objects="s3://bucket/images"),
        valid=Locator(metadata="/data/valid.csv"),
    ),
    author="ada",
    created=1.7e9,
)


def reported() -> Story:
    """Three workers, two epochs, validated; model m07 fails in its second epoch."""
    random = Random(1)
    story = Story(workers=3)
    story.time = 1.8e9
    story.etl(workers=3, splits={"train": 400, "valid": 100})
    models: dict[str, Hyperparameters] = {
        f"m{i:02}": {
            "lr": 10 ** random.uniform(-4, -1),
            "width": random.choice([16, 32, 64]),
            "activation": random.choice(["relu", NASTY]),
            "batch_size": 32,
        }
        for i in range(20)
    }
    story.fit(partitions=3, epochs=2, hyperparams=models, validated=True)
    for epoch in (1, 2):
        for model, given in models.items():
            if (model, epoch) == ("m07", 2):
                story.fail(unit(2, 0, "m07"), 0, FailureKind.USER_ERROR, f"ValueError: {NASTY}")
                continue
            lr = given["lr"]
            assert isinstance(lr, float)
            loss = abs(math.log10(lr) + 2.5) + 1 / epoch
            story.epoch(epoch, model=model, partitions=3, loss=loss)
            story.validate(epoch, model=model, loss=loss + 0.1)
    return story

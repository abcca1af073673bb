"""Run the code blocks in blocks.json. `test_tutorial.py` puts the tutorial's specs in front of this file."""

import json
import threading
import warnings
from pathlib import Path

from cerebro import Experiment
from cerebro.errors import CerebroError

experiment = Experiment.attach("customers")
space = {"lr": [0.01], "width": [8], "batch_size": [32]}
done = threading.Event()


class MySpec(CustomerModel):  # type: ignore[misc,name-defined]  # noqa: F821
    """The tutorial's spec with a second metric."""

    def test(self, *arguments):  # type: ignore[no-untyped-def]
        """Return the accuracy and its complement."""
        metrics = super().test(*arguments)
        return {**metrics, "loss": 1 - metrics["accuracy"]}


def stop_fits() -> None:
    """Stop each fit as soon as it is open; without an open run, `stop` raises."""
    watched = Experiment.attach("customers")
    while not done.wait(0.2):
        try:
            watched.stop()
        except CerebroError:
            continue


thread = threading.Thread(target=stop_fits)
thread.start()
try:
    for page, block in json.loads(Path("blocks.json").read_text()):
        names = {"experiment": experiment, "space": space, "MySpec": MySpec, "__name__": "guide"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a stopped fit warns
            exec(block, names)
        print("ran", page)  # noqa: T201
finally:
    done.set()
    thread.join()

"""Specs are checked before a run starts, with errors that name the method and the signatures."""

from __future__ import annotations

import functools
import importlib
import linecache
from pathlib import Path
from typing import Any

import pytest

from cerebro import ETLSpec, SubEpochSpec
from cerebro.errors import SpecError
from cerebro.usercode.checks import check_features, check_spec, returned_names


class Good(SubEpochSpec):
    """Parameters have other names than in the template, because workers pass arguments by position."""

    def create_models(self, h: Any) -> list[Any]:
        return []

    def train(self, m: Any, c: Any, d: Any, h: Any, extra: int = 3) -> dict[str, float]:
        return {}

    def test(self, *given: Any) -> dict[str, float]:
        return {}

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        yield from dataloader


def spec_with(**members: Any) -> SubEpochSpec:
    """Return a `Good` with these members replaced; `None` removes one."""
    attributes = {name: value for name, value in vars(Good).items() if not name.startswith("__")} | members
    kept = {name: value for name, value in attributes.items() if value is not None}
    sub_epoch_spec: SubEpochSpec = type("Mine", (SubEpochSpec,), kept)()
    return sub_epoch_spec


def check(spec: object, *, needed: tuple[str, ...] = ("create_models", "train", "test")) -> None:
    """Check a spec as `run_fit` does."""
    check_spec(spec, SubEpochSpec, "run_fit", needed)


def test_methods_that_workers_can_call_are_accepted() -> None:
    """Parameter names and the kind of function do not matter; unneeded methods are optional."""
    check(Good())
    check(spec_with(train=functools.partialmethod(Good.train, extra=4)))
    check(spec_with(test=staticmethod(lambda m, c, d, h: {})))
    check(spec_with(predict=None))
    check(spec_with(test=None), needed=("create_models", "train"))


TRAIN = r"train\(self, models, checkpoint, dataloader, hyperparams\)"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"train": None}, rf"Mine has no method 'train': define {TRAIN}"),
        ({"train": None, "trian": Good.train}, rf"has no method 'train': define {TRAIN}\. It has 'trian'"),
        ({"train": lambda self, models: {}}, rf"Mine\.train cannot .*expected {TRAIN}, found train\(self, models\)"),
        ({"train": lambda m, c, d, h: {}}, r"expected train\(self, .*found train\(m, c, d, h\)"),
        ({"train": lambda self, m, c, d, h, *, lr: {}}, r"'lr'.*found train\(self, m, c, d, h, \*, lr\)"),
        ({"train": {"lr": 1}}, r"Mine\.train is a dict, expected the method train\(models, checkpoint"),
        ({"train": Good.predict}, r"Mine\.train has a `yield`.*expected train\(self, models"),
        ({"predict": lambda self: 1}, r"Mine\.predict cannot be called.*found predict\(self\)"),
        ({"create_models": lambda self: []}, r"expected create_models\(self, hyperparams\), found .*\(self\)"),
        ({"initialize_worker": lambda self, x: 1}, r"expected initialize_worker\(self\)"),
    ],
)  # fmt: skip
def test_methods_that_workers_cannot_call_are_reported(members: dict[str, Any], message: str) -> None:
    """The message has the method, the expected signature and the actual one."""
    with pytest.raises(SpecError, match=message):
        check(spec_with(**members))


class Pictures(ETLSpec):
    """A spec that downloads objects of the given columns."""

    def __init__(self, columns: Any) -> None:
        self.is_feature_download = columns

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> Any:
        return row, mode


def test_missing_columns_are_reported() -> None:
    """The message lists the existing columns; without an object root, object columns are refused."""
    check_features(Pictures(["image"]), "train", ["id", "image"], has_objects=True)
    check_features(Pictures([]), "train", ["id"], has_objects=False)
    with pytest.raises(
        SpecError, match=r"names the column 'pic', but the metadata of 'valid' has only id, image"
    ):
        check_features(Pictures(["pic"]), "valid", ["id", "image"], has_objects=True)
    with pytest.raises(SpecError, match=r"names image, but the locator of 'valid' has no object root"):
        check_features(Pictures(["image"]), "valid", ["id", "image"], has_objects=False)


class Returning:
    """Methods with metric names that are static in the code, or not."""

    def known(self, rows: int) -> dict[str, float]:
        """Every return has a literal dictionary."""

        def other() -> str:
            return "no metric"

        if rows:
            return {"loss": 1.0, "accuracy": float(len(other()))}
        return {"loss": 0.0}

    def computed(self, rows: int) -> dict[str, float]:
        """One key is computed."""
        return {"loss": 1.0, f"at_{rows}": 2.0}

    def merged(self, rows: int) -> dict[str, float]:
        """The other dictionary's keys are unknown."""
        return {**self.known(rows), "f1": 1.0}

    def named(self, rows: int) -> dict[str, float]:
        """The variable's keys are unknown."""
        found = {"loss": float(rows)}
        return found  # noqa: RET504

    def nothing(self, rows: int) -> dict[str, float]:
        """A bare return has no dictionary."""
        return {}

    @functools.cache  # noqa: B019
    def decorated(self, rows: int) -> dict[str, float]:
        """The decorator may change the result."""
        return {"loss": float(rows)}


def test_metric_names_are_known_if_they_are_literals() -> None:
    """Unknown metrics are refused by these names, so uncertain methods must give none."""
    spec = Returning()
    assert returned_names(spec.known, "accuracy") == frozenset({"loss", "accuracy"})
    for method in (spec.computed, spec.merged, spec.named, spec.nothing, spec.decorated, len):
        assert returned_names(method, "accuracy") is None


def test_metric_names_come_from_the_code_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changed after the import."""
    path = tmp_path / "edited_spec.py"
    path.write_text("def test():\n    return {'accuracy': 1.0}\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("edited_spec")
    assert returned_names(module.test, "accuracy") == frozenset({"accuracy"})
    path.write_text("def test():\n    return {'loss': 1.00}\n")
    linecache.checkcache()
    assert returned_names(module.test, "loss") is None
    path.write_text("def test():\n    return {'accuracy': 1.0, 'loss': 1.0}\n")
    linecache.checkcache()
    edited = importlib.reload(module)
    path.write_text("def test():\n    return {'accuracy': 1.0}\n")
    linecache.checkcache()
    assert returned_names(edited.test, "loss") is None

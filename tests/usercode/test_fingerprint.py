"""User code is recognised from kernel to kernel, and what is the user's own from what is installed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cerebro.usercode.fingerprint import fingerprint
from tests.usercode.kernels import NOTEBOOK, in_process, kernel

pytestmark = pytest.mark.processes

SAME = {
    "a notebook": NOTEBOOK,
    "a tensor": """
import torch
from cerebro.spec import ETLSpec
class Spec(ETLSpec):
    def __init__(self):
        self.mean, self.half = torch.tensor([1.0, 2.0]), torch.ones(2, dtype=torch.bfloat16)
spec = Spec()
""",
    "a network": """
import torch
from cerebro.spec import SubEpochSpec
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
class Spec(SubEpochSpec):
    def __init__(self):
        torch.manual_seed(0)
        self.teacher = Net()
    def create_models(self, hyperparams):
        return [Net()]
spec = Spec()
""",
    "functions with arguments given": """
import functools, operator, re
from cerebro.spec import ETLSpec
def add(a, b): return a + b
@functools.lru_cache
def twice(x): return 2 * x
class Helper:
    __slots__ = ("n",)
    def __init__(self): self.n = 1
    def method(self): return self.n
class Spec(ETLSpec):
    def __init__(self):
        self.functions = [functools.partial(add, 1), Helper().method, twice, operator.itemgetter("id")]
        self.pattern = re.compile("a+")
        self.itself = self
spec = Spec()
""",
    "abstract and generic classes": """
import abc, enum
from typing import Generic, NamedTuple, TypeVar
from cerebro.spec import ETLSpec
T = TypeVar("T")
class Colour(enum.Enum):
    RED = 1
class Point(NamedTuple):
    x: int
class Spec(ETLSpec, abc.ABC, Generic[T]):
    def __init__(self): self.point, self.colours = Point(1), {Colour.RED: {"x", "y", "z"}}
    def row_preprocessor(self, row, mode, object_dir): return Colour.RED.value, {"p", "q", "r"}
spec = Spec()
""",
    "arrays": """
import numpy as np
from cerebro.spec import ETLSpec
class Spec(ETLSpec):
    def __init__(self): self.array, self.names = np.arange(6).reshape(2, 3), np.array(["a", "b"])
spec = Spec()
""",
}


@pytest.mark.parametrize("is_slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_code_is_recognised_in_another_kernel(is_slow: bool) -> None:
    """Other process, other hash seed, other file names and line numbers: the same fingerprint. Code that imports torch
    is tried with the slow tests."""
    tried = {name: source for name, source in SAME.items() if ("torch" in source) is is_slow}
    first = kernel(list(tried.values()))
    second = kernel(list(tried.values()), cells="<ipython-input-7>", padding=50)
    for name, one, other in zip(tried, first, second, strict=True):
        assert "error" not in one, (name, one)
        assert one["fingerprint"] == other["fingerprint"], name
    assert len({answer["fingerprint"] for answer in first}) == len(tried) > 0


CHANGES = {
    "a used global": ("SCALE = 3", "SCALE = 4"),
    "a table of labels": ('"dog": 1', '"dog": 2'),
    "a constant in a method": ('"train", "valid"', '"train", "other"'),
    "a helper function": ("math.floor", "math.ceil"),
    "a default of a data class": ('["a", "b"]', '["a", "c"]'),
    "an attribute": ("flip=True", "flip=False"),
    "a class attribute": ('["image"]', '["scan"]'),
    "a method of the base class": ('row["pixels"]', 'row["points"]'),
    "an operator": ("v * SCALE", "v + SCALE"),
}


def test_other_code_has_another_fingerprint() -> None:
    """Whatever is changed, however deep it lies."""
    sources = [NOTEBOOK]
    for old, new in CHANGES.values():
        assert old in NOTEBOOK
        sources.append(NOTEBOOK.replace(old, new))
    found = [answer["fingerprint"] for answer in kernel(sources)]
    for name, value in zip(CHANGES, found[1:], strict=True):
        assert value != found[0], name
    assert len(set(found)) == len(found)


def test_what_the_code_does_not_use_does_not_count() -> None:
    """Other variables of the notebook, comments, a variable named like an attribute that is used."""
    unused = "\nimport threading\nother = threading.Lock()\nflip = threading.Lock()\n# a comment\n"
    first, second, third = kernel(
        [
            NOTEBOOK,
            NOTEBOOK.replace("SCALE = 3", "SCALE = 3" + unused),
            NOTEBOOK.replace("        return", "\n        return"),
        ]
    )
    assert first["fingerprint"] == second["fingerprint"] == third["fingerprint"]


def test_an_edited_module_of_the_users_own_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is used as a module: its file is part of what the code does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "helpers_of_the_user", raising=False)
    path = tmp_path / "helpers_of_the_user.py"
    path.write_text("def f(x):\n    return x\n")
    import helpers_of_the_user as helpers  # type: ignore[import-not-found]

    before = fingerprint(helpers)
    path.write_text("def f(x):\n    return -x\n")
    assert fingerprint(helpers) != before
    assert fingerprint(json) == fingerprint(json)
    monkeypatch.delitem(sys.modules, "helpers_of_the_user")


def test_which_object_is_shared_counts() -> None:
    """Two lists with equal content are told from one that is referred to twice."""
    one, other = [0], [0]
    shared = fingerprint({"a": one, "b": other, "c": one})
    assert shared != fingerprint({"a": one, "b": other, "c": other})
    assert shared == fingerprint({"b": [0], "a": (first := [0]), "c": first})


def test_objects_that_are_gone_are_not_mistaken_for_others() -> None:
    """Default arguments of many functions: each counts, though what held them in between has the same address."""

    def functions(last: int) -> list[Any]:
        made = [eval(f"lambda x=({n}, [{n}]): x") for n in range(50)]
        return [*made, eval(f"lambda x=(0, [{last}]): x")]

    assert fingerprint(functions(1)) == fingerprint(functions(1))
    assert fingerprint(functions(1)) != fingerprint(functions(2))


# --- what is the user's own -----------------------------------------------------------------------


_SEND = """
    import base64
    import cloudpickle
    import mine
    from cerebro.usercode.encoding import encode
    from cerebro.usercode.fingerprint import is_local
    spec = mine.Spec()
    sent = base64.b64decode(encode(spec).encoded)
    print(is_local(mine), is_local(cloudpickle), is_local(cloudpickle.cloudpickle), b"hidden" in sent)
"""


def test_packages_on_the_path_are_not_taken_for_the_users(tmp_path: Path) -> None:
    """cloudpickle itself, from a folder without any record of it; the user's own module beside it travels."""
    import cloudpickle

    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "cloudpickle")
    (tmp_path / "mine.py").write_text(
        "import cloudpickle\n\nclass Spec:\n    def go(self):\n        return cloudpickle.dumps('hidden')\n"
    )
    assert in_process([tmp_path], _SEND) == "True False False True"


def test_what_pip_put_into_a_folder_is_installed(tmp_path: Path) -> None:
    """Its record lies beside it; a module that the record does not name is the user's."""
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(
        "thing/__init__.py,,\nthing/deep/part.py,,\nsingle.py,,\nthing-1.0.dist-info/RECORD,,\n"
    )
    (tmp_path / "thing/deep").mkdir(parents=True)
    for name in ("thing/__init__", "thing/deep/__init__", "thing/deep/part", "single", "mine"):
        (tmp_path / f"{name}.py").touch()
    code = """
        import mine, single, thing.deep.part
        from cerebro.usercode.fingerprint import is_local
        print([is_local(each) for each in (mine, single, thing, thing.deep, thing.deep.part)])
    """
    assert in_process([tmp_path], code) == "[True, False, False, False, False]"

"""User code as a string: restored where nothing of the notebook exists, recognised from kernel to kernel."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cerebro
from cerebro.errors import SpecError
from cerebro.spec import ETLSpec
from cerebro.usercode.encoding import MAX_ENCODED_BYTES, decode, encode
from cerebro.usercode.fingerprint import fingerprint

ROOT = Path(__file__).resolve().parents[2]

KERNEL = """
import json, sys
from cerebro.usercode.encoding import encode

def answer(main, program):
    known = set(main)
    exec(program, main)
    try:
        record = encode(main["spec"])
        return {"fingerprint": record.fingerprint, "encoded": record.encoded}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        for name in set(main) - known:
            del main[name]

def answers(main, padding, cells, sources):
    return [answer(main, compile("\\n" * padding + source, cells, "exec")) for source in sources]

print(json.dumps(answers(globals(), *json.load(sys.stdin))))
"""


def kernel(
    sources: list[str], *, cells: str = "/tmp/ipykernel_1/1.py", padding: int = 0
) -> list[dict[str, str]]:
    """Encode the `spec` that each source defines in the ``__main__`` of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps([padding, cells, sources]),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": str(padding + 1)},
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, str]] = json.loads(done.stdout)
    return answers


NOTEBOOK = """
import math
from dataclasses import dataclass, field
from cerebro.spec import ETLSpec

SCALE = 3
LABELS = {"cat": 0, "dog": 1}

def scaled(value):
    return [math.floor(v * SCALE) for v in value]

@dataclass
class Options:
    flip: bool = False
    names: list = field(default_factory=lambda: ["a", "b"])

class Base(ETLSpec):
    def helper(self, row):
        return scaled(row["pixels"])

class Digits(Base):
    is_feature_download = ["image"]

    def __init__(self, options):
        self.options = options

    def row_preprocessor(self, row, mode, object_dir):
        known = {"train", "valid", "test"}
        output = LABELS[row["label"]] if mode in known else None
        return self.helper(row), output

spec = Digits(Options(flip=True))
"""

RESTORE = """
import json, sys
from cerebro.usercode.encoding import decode
spec = decode(sys.stdin.read())
row = {"pixels": [1.5, 2.5], "label": "dog"}
print(json.dumps([spec.row_preprocessor(row, "train", ""), spec.options.names, spec.is_feature_download]))
"""


def test_a_class_of_the_notebook_is_restored_without_the_notebook() -> None:
    """With its base class, helper function, constants and data class, in an interpreter that knows none of them."""
    (answer,) = kernel([NOTEBOOK])
    done = subprocess.run(
        [sys.executable, "-c", RESTORE],
        input=answer["encoded"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[4, 7], 1], ["a", "b"], ["image"]]


# --- the fingerprint ---------------------------------------------------------------------------------

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


def test_the_same_code_is_recognised_in_another_kernel() -> None:
    """Other process, other hash seed, other file names and line numbers: the same fingerprint."""
    first = kernel(list(SAME.values()))
    second = kernel(list(SAME.values()), cells="<ipython-input-7>", padding=50)
    for name, one, other in zip(SAME, first, second, strict=True):
        assert "error" not in one, (name, one)
        assert one["fingerprint"] == other["fingerprint"], name
    assert len({answer["fingerprint"] for answer in first}) == len(SAME)


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


class Holder(ETLSpec):
    """A spec of this module: holds whatever it is given."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


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


# --- what cannot be sent -----------------------------------------------------------------------------


def test_an_attribute_that_cannot_be_serialised_is_named() -> None:
    """With its type, and where to make it instead."""
    with pytest.raises(SpecError, match=r"attribute 'connection' \(lock\).*initialize_worker\(\)"):
        encode(Holder(fine=1, connection=threading.Lock()))


def test_a_global_that_cannot_be_serialised_is_named() -> None:
    """With the method that uses it; so is a class attribute."""
    source = """
import threading
from cerebro.spec import ETLSpec
guard = threading.Lock()
class Spec(ETLSpec):
    def row_preprocessor(self, row, mode, object_dir):
        with guard:
            return 1, 1
spec = Spec()
"""
    of_class = """
import threading
from cerebro.spec import ETLSpec
class Spec(ETLSpec):
    guard = threading.Lock()
spec = Spec()
"""
    first, second = kernel([source, of_class])
    assert first["error"].startswith("SpecError: Spec cannot be sent")
    assert "row_preprocessor() uses 'guard' (lock)" in first["error"]
    assert "attribute 'guard' (lock)" in second["error"]


def test_a_class_instead_of_an_object_is_refused() -> None:
    """With the call that was meant."""
    with pytest.raises(SpecError, match=r"Holder is a class: pass an object, Holder\(\)"):
        encode(Holder)


def test_what_is_too_large_is_refused() -> None:
    """With its size, and where large files belong."""
    with pytest.raises(SpecError, match=r"43 MiB.*at most 32.*misc"):
        encode(Holder(weights=os.urandom(MAX_ENCODED_BYTES)))


def test_a_module_the_worker_lacks_is_named() -> None:
    """With the two ways to bring it there."""
    content = b"cabsent_module_of_the_user\nf\n."
    with pytest.raises(SpecError, match=r"'absent_module_of_the_user'.*requirements.txt"):
        decode(base64.b64encode(content).decode())


@pytest.mark.parametrize("encoded", ["", "!!!!", "AAAA", base64.b64encode(b"\x80\x05.").decode()])
def test_what_is_no_code_is_refused(encoded: str) -> None:
    """As an error of the spec, whatever the bytes do to the unpickler."""
    with pytest.raises(SpecError, match="cannot be restored"):
        decode(encoded)


# --- what is the user's own -----------------------------------------------------------------------


def _in_process(path: Sequence[Path], code: str) -> str:
    """What a program prints that has these folders in front of its path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
    assert _in_process([tmp_path], _SEND) == "True False False True"


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
    assert _in_process([tmp_path], code) == "[True, False, False, False, False]"


def test_decoding_leaves_the_classes_of_this_process_alone(tmp_path: Path) -> None:
    """A class in a notebook goes on seeing the notebook's variables."""
    code = """
        from cerebro.usercode.encoding import decode, encode
        scale = 1
        class Spec:
            def value(self):
                return scale
        mine = Spec()
        theirs = decode(encode(mine).encoded)
        scale = 2
        print(mine.value(), theirs.value(), type(theirs) is Spec, type(theirs).__name__)
    """
    assert _in_process([tmp_path], code) == "2 1 False Spec"


def test_a_stored_spec_may_name_modules_by_the_names_of_version_0_1() -> None:
    """What an older client pickled by reference is found where it is now."""
    stored = base64.b64encode(b"(ccerebro.search\nchoice\nccerebro.experiment\nExperiment\nt.").decode()
    assert decode(stored) == (cerebro.choice, cerebro.Experiment)

"""Fingerprints identify user code across kernels and separate it from installed packages."""

from __future__ import annotations

import importlib
import linecache
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.usercode.encoding import decode, encode
from cerebro.usercode.fingerprint import fingerprint
from tests.usercode.kernels import NOTEBOOK, in_process, kernel

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


@pytest.mark.commands
@pytest.mark.parametrize("is_slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_code_is_recognised_in_another_kernel(is_slow: bool) -> None:
    """The process, hash seed, file names and line numbers do not matter.

    Code with a torch import runs in the slow tests.
    """
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


@pytest.mark.commands
def test_other_code_has_another_fingerprint() -> None:
    sources = [NOTEBOOK]
    for old, new in CHANGES.values():
        assert old in NOTEBOOK
        sources.append(NOTEBOOK.replace(old, new))
    found = [answer["fingerprint"] for answer in kernel(sources)]
    for name, value in zip(CHANGES, found[1:], strict=True):
        assert value != found[0], name
    assert len(set(found)) == len(found)


@pytest.mark.commands
def test_unused_code_does_not_change_the_fingerprint() -> None:
    """Covers unused variables, comments, and a variable with the name of a used attribute."""
    unused = "\nimport threading\nother = threading.Lock()\nflip = threading.Lock()\n# a comment\n"
    first, second, third = kernel(
        [
            NOTEBOOK,
            NOTEBOOK.replace("SCALE = 3", "SCALE = 3" + unused),
            NOTEBOOK.replace("        return", "\n        return"),
        ]
    )
    assert first["fingerprint"] == second["fingerprint"] == third["fingerprint"]


# --- the user's own modules --------------------------------------------------------------------------


USES = {
    "a module": ("import helper", "helper.scale(1)"),
    "a function by name": ("from helper import scale", "scale(1)"),
    "a module under another name": ("import helper as h", "h.scale(1)"),
    "a module by getattr": ("import helper", "getattr(helper, 'scale')(1)"),
    "a module in a dict": ("import helper\nMODULES = {'h': helper}", "MODULES['h'].scale(1)"),
    "a submodule": ("import pack.inner", "pack.inner.scale(1)"),
    "a module of a package": ("from pack import inner", "inner.scale(1)"),
    "a module of a folder": ("import folder.inner", "folder.inner.scale(1)"),
    "a module of a module": ("import outer", "outer.scale(1)"),
    "a class": ("import helper", "helper.Scaler().scale(1)"),
    "a nested function": ("import helper", "(lambda: helper.scale(1))()"),
}
"""Import statements of the spec's module, and the expression that its method returns."""


class Project:
    """A user's modules in a folder, and a spec that uses them."""

    def __init__(self, root: Path, imports: str, used: str) -> None:
        self.root = root
        (root / "pack").mkdir()
        (root / "folder").mkdir()
        (root / "pack" / "__init__.py").touch()
        (root / "outer.py").write_text("from helper import scale\n")
        self.edit(1)
        (root / "specs.py").write_text(
            f"{imports}\nfrom cerebro.spec import ETLSpec\n\n\nclass Spec(ETLSpec):\n"
            f"    def row_preprocessor(self, row, mode, object_dir):\n        return {used}, None\n"
        )
        self.start()

    def edit(self, factor: int) -> None:
        """Rewrite the files with another factor."""
        text = (
            f"import time\nSTARTED = time.time_ns()\ndef scale(x):\n    return x * {factor}\n\n"
            f"class Scaler:\n    def scale(self, x):\n        return x * {factor}\n"
        )
        for name in ("helper", "pack/inner", "folder/inner"):
            (self.root / f"{name}.py").write_text(text)

    def start(self) -> None:
        """Import all modules as a new kernel does."""
        for name in [each for each in sys.modules if each.partition(".")[0] in _PROJECT]:
            del sys.modules[name]
        importlib.invalidate_caches()
        self.spec = importlib.import_module("specs").Spec()

    def sent(self) -> tuple[str, int]:
        """Return the fingerprint, and the result of the decoded spec without the modules on the path."""
        record = encode(self.spec)
        modules = {
            name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in _PROJECT
        }
        path = sys.path[:]
        sys.path.remove(str(self.root))
        try:
            return record.fingerprint, decode(record.encoded).row_preprocessor({}, "train", "")[0]
        finally:
            sys.path[:] = path
            sys.modules.update(modules)


_PROJECT = ("helper", "pack", "folder", "outer", "specs")


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Project]:
    """A project with the test's import style."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Project(tmp_path, *getattr(request, "param", USES["a module"]))
    for name in [each for each in sys.modules if each.partition(".")[0] in _PROJECT]:
        del sys.modules[name]


@pytest.mark.parametrize("project", USES.values(), ids=USES, indirect=True)
def test_the_fingerprint_belongs_to_the_sent_code(project: Project) -> None:
    """An edit counts once the module is reloaded."""
    before, first = project.sent()
    project.edit(2)
    assert project.sent() == (before, 1)
    project.start()
    after, second = project.sent()
    assert (first, second) == (1, 2)
    assert after != before
    project.edit(1)
    project.start()
    assert project.sent()[1] == 1


@pytest.mark.parametrize(
    "project", [USES["a module"], USES["a submodule"]], ids=["module", "submodule"], indirect=True
)
def test_a_reloaded_module_changes_the_fingerprint(project: Project) -> None:
    before = project.sent()[0]
    project.edit(2)
    for name in ("helper", "pack.inner"):
        importlib.reload(importlib.import_module(name))
    after, factor = project.sent()
    assert factor == 2
    assert after != before


@pytest.mark.parametrize("how", ["deleted", "compiled", "forgotten"])
def test_modules_without_a_file_change_the_fingerprint(project: Project, how: str) -> None:
    """Covers deleted files, byte code without source, and modules removed from `sys.modules`."""
    if how == "compiled":
        py_compile.compile(str(project.root / "helper.py"), str(project.root / "helper.pyc"))
    (project.root / "helper.py").unlink()
    if how == "compiled":
        project.start()
    found = []
    for factor in (1, 2):
        sys.modules["helper"].scale.__code__ = (
            (lambda x: x * 1).__code__ if factor == 1 else (lambda x: x * 2).__code__
        )
        if how == "forgotten":
            monkey = sys.modules.pop("helper")
            found.append(project.sent())
            sys.modules["helper"] = monkey
        else:
            found.append(project.sent())
    assert [value for _, value in found] == [1, 2]
    assert found[0][0] != found[1][0]


def test_the_source_belongs_to_the_sent_code(project: Project) -> None:
    """After an edit the source shown is still the imported code's."""
    path = project.root / "specs.py"
    assert "helper.scale(1)" in encode(project.spec).source
    path.write_text(path.read_text().replace("scale(1)", "scale(3)"))
    linecache.checkcache(str(path))
    assert "edited after this kernel imported it" in encode(project.spec).source
    project.start()
    assert "helper.scale(3)" in encode(project.spec).source


def test_shared_references_change_the_fingerprint() -> None:
    """A list referenced twice differs from two equal lists."""
    one, other = [0], [0]
    shared = fingerprint({"a": one, "b": other, "c": one})
    assert shared != fingerprint({"a": one, "b": other, "c": other})
    assert shared == fingerprint({"b": [0], "a": (first := [0]), "c": first})


# --- user modules and installed packages ---------------------------------------------------------


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


@pytest.mark.commands
def test_packages_on_the_path_do_not_count_as_user_code(tmp_path: Path) -> None:
    """The copy of cloudpickle has no install record; the user's module next to it is sent."""
    import cloudpickle

    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "cloudpickle")
    (tmp_path / "mine.py").write_text(
        "import cloudpickle\n\nclass Spec:\n    def go(self):\n        return cloudpickle.dumps('hidden')\n"
    )
    assert in_process([tmp_path], _SEND) == "True False False True"


@pytest.mark.commands
def test_packages_of_a_layered_environment_are_installed(tmp_path: Path) -> None:
    """Such an environment sees the worker's packages by a .pth file, so `site` does not list them."""
    packages = tmp_path / "lib" / "python3" / "site-packages"
    (packages / "deep" / "inner").mkdir(parents=True)
    for name in ("deep/__init__", "deep/inner/part", "single"):
        (packages / f"{name}.py").write_text(
            "import threading\nLOCK = threading.Lock()\ndef f():\n    return LOCK\n"
        )
    (tmp_path / "mine.py").write_text(
        "import single, deep.inner.part\n\nclass Spec:\n    def go(self):\n        "
        "return single.f(), deep.inner.part.f(), 'hidden'\n"
    )
    code = """
        import base64, sys
        import deep.inner.part, mine, single
        from cerebro.usercode.encoding import encode, packed
        from cerebro.usercode.fingerprint import is_local
        sys.modules["renamed"] = single  # as some packages do
        sent = base64.b64decode(encode(mine.Spec()).encoded)
        packed({"mean": 1.5}, "a result", 1000)
        modules = (mine, single, deep, deep.inner, deep.inner.part)
        print([is_local(each) for each in modules], b"hidden" in sent)
    """
    assert in_process([tmp_path, packages], code) == "[True, False, False, False, False] True"


@pytest.mark.commands
def test_modules_that_pip_put_into_a_folder_count_as_installed(tmp_path: Path) -> None:
    """Pip's RECORD file lists installed modules; other modules in the folder are the user's."""
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

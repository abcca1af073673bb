"""Encoded user code is restored without its notebook."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from cerebro.errors import SpecError
from cerebro.spec import ETLSpec
from cerebro.usercode.encoding import MAX_ENCODED_BYTES, decode, encode
from tests.usercode.kernels import NOTEBOOK, ROOT, in_process, kernel
from tests.waiting import HANG_S

RESTORE = """
import json, sys
from cerebro.usercode.encoding import decode
spec = decode(sys.stdin.read())
row = {"pixels": [1.5, 2.5], "label": "dog"}
print(json.dumps([spec.row_preprocessor(row, "train", ""), spec.options.names, spec.is_feature_download]))
"""


@pytest.mark.commands
def test_a_class_of_the_notebook_is_restored_without_the_notebook() -> None:
    """Includes the base class, helper function, constants and data class."""
    (answer,) = kernel([NOTEBOOK])
    done = subprocess.run(
        [sys.executable, "-c", RESTORE],
        input=answer["encoded"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[4, 7], 1], ["a", "b"], ["image"]]


class Holder(ETLSpec):
    """A spec with arbitrary attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.commands
def test_threads_do_not_change_each_others_code(tmp_path: Path) -> None:
    """Four threads encode a spec while another one uses cloudpickle."""
    (tmp_path / "mymodel.py").write_text(
        "from cerebro import ETLSpec\nBIG = {i: str(i) for i in range(500)}\n\n\nclass Mine(ETLSpec):\n"
        "    def row_preprocessor(self, row, mode, object_dir):\n        return len(BIG), None\n"
    )
    code = """
        import sys, threading
        sys.setswitchinterval(1e-5)
        import cloudpickle, mymodel
        from cerebro.usercode.encoding import encode
        sent, other, start = set(), set(), threading.Barrier(5)
        def encodes():
            start.wait()
            for _ in range(30):
                sent.add(encode(mymodel.Mine()).sha256)
        def pickles():
            start.wait()
            for _ in range(300):
                other.add(cloudpickle.dumps(mymodel.Mine()))
        threads = [threading.Thread(target=encodes) for _ in range(4)] + [threading.Thread(target=pickles)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(sent), len(other), cloudpickle.list_registry_pickle_by_value())
    """
    assert in_process([tmp_path], code) == "1 1 set()"


# --- objects that cannot be sent ---------------------------------------------------------------------


@pytest.mark.commands
def test_a_global_that_cannot_be_serialised_is_named() -> None:
    """The error names the method that uses it; class attributes are covered too."""
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


def test_a_too_large_spec_is_refused() -> None:
    """The error gives the size and where to store large files."""
    with pytest.raises(SpecError, match=r"43 MiB.*at most 32.*misc"):
        encode(Holder(weights=os.urandom(MAX_ENCODED_BYTES)))


def test_a_module_the_worker_lacks_is_named() -> None:
    """The error gives two ways to install it."""
    content = b"cabsent_module_of_the_user\nf\n."
    with pytest.raises(SpecError, match=r"'absent_module_of_the_user'.*requirements.txt"):
        decode(base64.b64encode(content).decode())


@pytest.mark.commands
def test_decoding_leaves_the_classes_of_this_process_alone(tmp_path: Path) -> None:
    """A notebook class keeps using the notebook's variables."""
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
    assert in_process([tmp_path], code) == "2 1 False Spec"


def test_a_traceback_of_restored_code_names_file_and_line() -> None:
    """Also a nested function."""
    try:
        decode(encode(Failing()).encoded).run()
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)[-2:]
    assert [(frame.filename, frame.name, frame.line) for frame in frames] == [
        (__file__, "run", "return inner()"),
        (__file__, "inner", 'raise ValueError("boom")'),
    ]


class Failing(ETLSpec):
    """Raises in a nested function."""

    def run(self) -> None:
        def inner() -> None:
            raise ValueError("boom")

        return inner()

"""Run user code in fresh interpreters, as notebook cells or programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tests.waiting import HANG_S

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
        timeout=HANG_S,
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


def in_process(path: Sequence[Path], code: str) -> str:
    """Run a program with these folders first on its path, and return its output."""
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

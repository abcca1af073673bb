"""The Keras backend of a process is fixed before the first import of Keras."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro import KerasSubEpochSpec
from cerebro.contract.trials import AvailableDevices, DeviceKind
from cerebro.errors import SpecError
from cerebro.keras.backend import CORES, select_backend
from cerebro.techniques import ModelFacts
from cerebro.usercode.encoding import decode, encode
from trial_runner.inspection import offered
from trial_runner.known_parallel_plans import known_parallel_plans


class _Backend:
    """Unpickles as the current backend."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getenv, ("KERAS_BACKEND",)


class Spec(KerasSubEpochSpec):
    """A spec for torch."""

    keras_backend = "torch"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "")
    monkeypatch.delitem(sys.modules, "keras", raising=False)


def test_the_backend_is_set_before_the_code_is_decoded() -> None:
    """Unpickling the code imports Keras, which fixes the backend."""

    class Notebook(Spec):
        """Defined in a notebook, so the class is sent by value."""

        backend = _Backend()

    assert decode(encode(Notebook()).encoded).backend == "torch"


def test_the_client_decides_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec's, the imported Keras', the environment's, or TensorFlow; it is stored with the spec."""
    assert select_backend("") == "tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert select_backend("") == "torch"
    encoded = encode(KerasSubEpochSpec()).encoded
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert decode(encoded).keras_backend == "torch"
    assert select_backend("tensorflow") == "tensorflow"
    _imported(monkeypatch, "torch")
    assert select_backend("") == "torch"


def test_an_unsupported_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start of the run."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(SpecError, match=r"'jax', expected 'tensorflow' or 'torch': set keras_backend"):
        encode(KerasSubEpochSpec())


def test_an_imported_other_backend_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook's dry run."""
    encoded = encode(Spec()).encoded
    _imported(monkeypatch, "tensorflow")
    with pytest.raises(
        SpecError, match=r"imported Keras with the backend 'tensorflow', but the spec needs 'torch'"
    ):
        decode(encoded)


def test_a_worker_without_keras_names_the_ways_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra, the images and the requirements file."""
    monkeypatch.setenv(CORES, "1")
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(SpecError, match=r"no module 'keras'.*extra 'keras'.*KERAS=1.*requirements\.txt"):
        decode(encode(Spec()).encoded)


def test_techniques_are_ruled_out_for_a_keras_model() -> None:
    """All but `single`, with the reason."""
    facts = ModelFacts(signature="one", param_bytes=8, trainable_bytes=8, only_single="it is a Keras model")
    places = [AvailableDevices(device=DeviceKind(kind="cpu", name="cpu"), max_devices=2)]
    parallel_plans = known_parallel_plans(facts, offered(None), places)
    assert {
        parallel_plan.reason
        for parallel_plan in parallel_plans
        if parallel_plan.parallel_plan.technique != "single"
    } == {"it is a Keras model"}
    assert [parallel_plan.id for parallel_plan in parallel_plans if not parallel_plan.reason] == ["single"]


def _imported(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    keras = SimpleNamespace(config=SimpleNamespace(backend=lambda: backend))
    monkeypatch.setitem(sys.modules, "keras", keras)

"""Keras models for tests, and a check for Keras."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

from cerebro import KerasSubEpochSpec

BACKEND = os.environ.get("KERAS_BACKEND") or "torch"
"""The backend of the sub-epoch tests. A process has one; `test_tensorflow` runs them again with the other one."""


def require_keras(backend: str) -> None:
    """Skip without the library; fail in CI."""
    for name in ("keras", backend):
        if importlib.util.find_spec(name) is None:
            assert not os.environ.get("CI"), f"{name} is missing: pip install -e '.[keras]'"
            pytest.skip(f"{name} is not installed")


class Net(KerasSubEpochSpec):
    """Dropout, batch normalisation, momentum and a schedule: all state that persists between sub-epochs."""

    keras_backend = BACKEND

    def create_models(self, hyperparams: Any) -> Any:
        import keras
        from keras import layers

        network = keras.Sequential(
            [
                keras.Input((3,)),
                layers.Dense(6, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.4),
                layers.Dense(2, activation="softmax"),
            ]
        )
        rate = hyperparams.get("lr") or keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
        network.compile(
            keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return network

"""Check that a parent's weights fit the network of its warm clone, for `Experiment.clone`.

It runs `create_models` twice in the user's process, on the CPU, and compares names and shapes; it loads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from cerebro.errors import ConflictError
from cerebro.usercode.in_process import UserCode, generators_kept

_MAX_NAMED = 3


def check_shapes(
    model: str, code: UserCode, encoded: str, parent: Mapping[str, Any], clone: Mapping[str, Any]
) -> None:
    """Raise `ConflictError` if tensors of `create_models` differ in name or shape between parent and clone.

    Args:
        model: id of the parent.
        code: environment of the user's code.
        encoded: encoded spec.
        parent: hyperparameters of the parent.
        clone: hyperparameters of the clone.

    If user code cannot run in this process, for example without torch, the check is skipped and the worker reports a
    mismatch.
    """
    if find_spec("torch") is None:
        return
    try:
        shapes = [_shapes(model, code, encoded, hyperparams) for hyperparams in (parent, clone)]
    except Exception:  # noqa: BLE001 - user code, which may need files of the worker
        return
    old, new = shapes
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not differing:
        return
    changes = ", ".join(
        f"{name} {old.get(name, 'is new')} -> {new.get(name, 'is gone')}" for name in differing[:_MAX_NAMED]
    )
    more = f" and {len(differing) - _MAX_NAMED} more" if len(differing) > _MAX_NAMED else ""
    changed = ", ".join(f"{name}={clone[name]!r}" for name in clone if parent.get(name) != clone[name])
    raise ConflictError(
        f"{model} cannot be cloned warm: its weights do not fit a network with {changed} ({changes}{more}). Pass "
        f"warm=False, or keep these values"
    )


def _shapes(
    model: str, code: UserCode, encoded: str, hyperparams: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    from cerebro.worker.training.sub_epoch import create, device_named, tensor_shapes

    with code.importable(), generators_kept():
        spec = code.spec(encoded)
        spec.initialize_worker()
        return tensor_shapes(create(spec, hyperparams, seed=0, model=model, device=device_named("cpu")))

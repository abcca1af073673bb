"""Check that the weights of a parent fit the network of its warm clone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from cerebro.errors import ConflictError
from cerebro.usercode.in_process import UserCode, generators_kept

_NAMED = 3


def check_shapes(
    model: str, code: UserCode, encoded: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Raise `ConflictError` if `create_models` makes tensors of other names or shapes with `after` than with `before`.

    If user code cannot run in this process, for example without torch, raise nothing: the worker reports the mismatch.
    """
    if find_spec("torch") is None:
        return
    try:
        shapes = [_shapes(model, code, encoded, hyperparams) for hyperparams in (before, after)]
    except Exception:  # noqa: BLE001 - user code, which may need files of the worker
        return
    old, new = shapes
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not differing:
        return
    told = ", ".join(
        f"{name} {old.get(name, 'is new')} -> {new.get(name, 'is gone')}" for name in differing[:_NAMED]
    )
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    changed = ", ".join(f"{name}={after[name]!r}" for name in after if before.get(name) != after[name])
    raise ConflictError(
        f"it is not possible to clone the model: the weights of {model} do not fit a network with {changed} "
        f"({told}{more}). Give warm=False, or leave such values as they are"
    )


def _shapes(
    model: str, code: UserCode, encoded: str, hyperparams: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    from cerebro.worker.training.sub_epoch import create, device_named, tensor_shapes

    with code.importable(), generators_kept():
        spec = code.spec(encoded)
        spec.initialize_worker()
        return tensor_shapes(create(spec, hyperparams, seed=0, model=model, device=device_named("cpu")))

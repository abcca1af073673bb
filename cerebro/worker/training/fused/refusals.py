"""Reasons why a stack cannot compute a step, with the name of the layer.

`group` calls `explained` when the first step of a stack fails: the step runs once more while hooks of the modules note
which layer is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from cerebro.errors import NotApplicableError
from cerebro.runtime.tracebacks import line_of


def explained(error: Exception, again: Callable[[], object], modules: list[nn.Module]) -> NotApplicableError:
    """Return the reason for users why a step of the stack failed.

    Args:
        error: its error.
        again: repeats the step.
        modules: the modules that the step calls.
    """
    running: list[nn.Module] = []
    with _noting(running):
        try:
            again()
        except Exception as repeated:  # noqa: BLE001 - an error of user code, or of torch
            error = repeated
    names = {
        id(module): f"{type(module).__name__} {path!r}" if path else type(module).__name__
        for root in modules
        for path, module in root.named_modules()
    }
    where = next(
        (names[id(module)] for module in reversed(running) if id(module) in names), "training_step()"
    )
    return NotApplicableError(f"models cannot train as one stack: {where}: {line_of(error)}")


@contextmanager
def _noting(running: list[nn.Module]) -> Iterator[None]:
    """Keep the modules whose `forward` is running in `running`, outermost first."""

    def begin(module: nn.Module, _: Any) -> None:
        running.append(module)

    def end(module: nn.Module, _: Any, __: Any) -> None:
        running.pop()

    hooks = register_module_forward_pre_hook(begin), register_module_forward_hook(end)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

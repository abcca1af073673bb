"""Errors in a group: of one member, of the stack or of the machine.

`group` calls `explained` when the first step of a stack fails: the step runs once more while hooks of the modules note
which layer is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from cerebro.errors import CheckpointCorruptError, NotApplicableError, RetryableError
from cerebro.runtime.tracebacks import line_of
from cerebro.worker.child.memory_errors import whose_memory
from cerebro.worker.health.device_errors import Blame, blame

T = TypeVar("T")


def is_of_machine(error: Exception) -> bool:
    """True if memory, a device or a volume may be the cause: then it concerns all members of a group."""
    return (
        (isinstance(error, RetryableError) and not isinstance(error, CheckpointCorruptError))
        or whose_memory(error) is not None
        or blame(error, has_gpu=True) is not Blame.CODE
    )


def outcome_of(step: Callable[[], T]) -> T | Exception:
    """Run a step of one member. Return its result, or the error that ends only this member.

    Raises:
        Exception: an error of the machine; see `is_of_machine`.
    """
    try:
        return step()
    except Exception as error:
        if is_of_machine(error):
            raise
        return error


def explained(error: Exception, again: Callable[[], object], modules: list[nn.Module]) -> NotApplicableError:
    """Return the reason for users why a step of the stack failed.

    Args:
        error: its error.
        again: repeats the step.
        modules: the modules that the step calls.

    Raises:
        Exception: the machine fails at the repetition; see `is_of_machine`.
    """
    running: list[nn.Module] = []
    with _noting(running):
        try:
            again()
        except Exception as repeated:
            if is_of_machine(repeated):
                raise
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

"""Models made without drawing their weights, because those of a file take their place.

To draw the weights of a large model takes longer than to read them. So `create_models` is run with draws left out, and
what they would have filled is *undrawn*. It is followed through all that torch computes from it, and the model counts
only if nothing but what a file brings is undrawn in the end. Otherwise, and wherever user code looks at a value that
was not drawn, the model is made anew as ever: weights never depend on whether this could be spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READING = frozenset(
    {"numpy", "tolist", "data_ptr", "storage", "untyped_storage", "_typed_storage", "__array__", "__dlpack__"}
    | {"__reduce_ex__", "share_memory_", "to_dlpack", "is_set_to", "__repr__", "__format__"}
)
"""Methods of a tensor that lead to its values without an operation of torch."""

_TELLING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Of operations whose result, as Python sees it, depends on values."""

Undrawn = list[tuple[torch.Tensor, int]]
"""Tensors of a model whose values are to come from a file, and the version that each has until then."""


class _LookedAtError(Exception):
    """User code needs a value that was not drawn."""


def made_undrawn(make: Callable[[], list[nn.Module]]) -> tuple[list[nn.Module], Undrawn] | None:
    """The modules that `make` makes, with draws left out.

    Returns:
        The modules and what of them is undrawn: all of it is in their state. `None` where this cannot be: then
        `make` was run, at least in part, for nothing.
    """
    followed = _Followed()
    try:
        with followed.at_work():
            modules = make()
    except Exception:  # noqa: BLE001 - of user code that meets what was not drawn, or its own: then it comes again
        return None
    if followed.is_looked_at or not all(isinstance(module, nn.Module) for module in modules):
        return None
    covered: dict[int, list[torch.Tensor]] = {}
    for module in modules:
        for tensor in module.state_dict(keep_vars=True).values():
            if type(tensor) in (torch.Tensor, nn.Parameter) and _fills(tensor):
                covered.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    if not followed.are_only(covered):
        return None
    undrawn = [tensor for place in followed.places for tensor in covered.get(place, [])]
    return modules, [(tensor, tensor._version) for tensor in undrawn]


def is_written(undrawn: Undrawn) -> bool:
    """Whether all of it has got values since; a module may load its state in a way of its own."""
    return all(tensor._version > version for tensor, version in undrawn)


def _fills(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all that its memory holds."""
    return (
        tensor.layout is torch.strided
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


class _Followed:
    """What is undrawn, by the memory that it lies in."""

    def __init__(self) -> None:
        self.places: dict[int, Any] = {}
        """Weak references, which keep the number of a place from being used again."""
        self.is_looked_at = False
        """User code may have caught the error that says so."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Leave draws out, and follow what they would have filled."""
        with _Methods(self), _Operations(self):
            yield

    def are_only(self, covered: Mapping[int, object]) -> bool:
        """Whether all that is undrawn, and still there, lies in these places."""
        return all(place in covered or kept.expired() for place, kept in self.places.items())

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are undrawn."""
        for tensor in tensors:
            storage = self._storage(tensor)
            self.places[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def any_of(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether one of them is undrawn."""
        for tensor in tensors:
            kept = self.places.get(self._storage(tensor)._cdata)
            if kept is not None and not kept.expired():
                return True
        return False

    def refuse(self, what: str) -> None:
        """End `make` here.

        Raises:
            _LookedAtError: always.
        """
        self.is_looked_at = True
        raise _LookedAtError(what)

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            self.refuse(f"a {type(tensor).__name__} has no memory of its own")
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation of torch, below the methods that user code calls."""

    def __init__(self, followed: _Followed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._followed = followed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags
        tensors = _tensors((args, given))
        if not is_drawn and not self._followed.any_of(tensors):
            return func(*args, **given)
        if given.get("generator") is not None or any(isinstance(each, torch.Generator) for each in args):
            self._followed.refuse("a generator of user code's own goes on from where it is")
        if any(tag in func.tags for tag in _TELLING):
            self._followed.refuse(f"{func} tells of values")
        if _is_in_place(func) and isinstance(args[0], torch.Tensor):
            self._followed.add([args[0]])
            return args[0]
        result = func(*args, **given)
        # What is written into counts as a result, too.
        self._followed.add([*_tensors(result), *_written(func, args, given)])
        return result


class _Methods(TorchFunctionMode):
    """Methods that lead to values past all operations."""

    def __init__(self, followed: _Followed) -> None:
        super().__init__()
        self._followed = followed

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") in _READING and self._followed.any_of(_tensors((args, given))):
            self._followed.refuse(f"{func.__name__} leads to values")
        return func(*args, **given)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_in_place(func: Any) -> bool:
    """Whether it returns its first argument alone, with other values: ``normal_`` and the like."""
    arguments, returns = func._schema.arguments, func._schema.returns
    alias = arguments[0].alias_info if arguments else None
    return (
        alias is not None
        and alias.is_write
        and len(returns) == 1
        and func._schema.name.endswith("_")
        and not func._schema.name.endswith("__")
        and func.__name__.split(".")[0] not in _REFORMING
        and sum(each.alias_info is not None and each.alias_info.is_write for each in arguments) == 1
    )


_REFORMING = frozenset(
    {"resize_", "set_", "as_strided_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "detach_"}
    | {"requires_grad_", "resize_as_", "unsafe_set_", "rename_", "swapdims_"}
)
"""They change what a tensor is, and not its values."""


def _written(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> list[torch.Tensor]:
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else given.get(argument.name)
            found += _tensors(value)
    return found

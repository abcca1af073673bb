"""Checks of a sub-epoch that fail nothing: training without effect, and state that will be lost.

`sub_epoch.train_sub_epoch` wraps the user's `train` with `SubEpochChecks`; the warnings go into the task's result and
log. A model hops from process to process. A sub-epoch saves its modules' states and `checkpoint`, and drops the rest.
Training continues without an error then, and computes something else. Each check reports facts and no guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from xxhash import xxh3_64_intdigest

from cerebro.worker.training.checkpoints.rows import content
from cerebro.worker.training.checkpoints.storable import tensors
from cerebro.worker.training.frameworks import only_single

if TYPE_CHECKING:
    from cerebro.spec import DataLoader
    from cerebro.worker.training.trainee import Trainee

_NAMED = 3
_LARGE_FROZEN = 1 << 20
"""Frozen weights of at least this many bytes are compared by their version counter."""
_SCALARS = (bool, int, float, str)


class SubEpochChecks:
    """Checks of one sub-epoch::

    checks = SubEpochChecks(trainee)
    with checks:
        spec.train(...)
    trainee.warnings = checks.warnings(loader)
    """

    def __init__(self, trainee: Trainee) -> None:
        self._trainee = trainee
        self._modules = list(trainee.modules)
        self._weights = {name: _digest(weight) for name, weight in _weights(self._modules)}
        self._parameters = _parameters(self._modules) if trainee.has_own_parameters else {}
        self._unsaved = dict(_unsaved(self._modules)) if trainee.has_own_parameters else {}
        self._seed = torch.initial_seed()
        self._stepped: dict[int, torch.optim.Optimizer] = {}

    def __enter__(self) -> None:
        self._hook = register_optimizer_step_post_hook(self.record_step)

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def record_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Record that an optimizer took a step; torch calls it after `Optimizer.step`."""
        self._stepped[id(optimizer)] = optimizer

    def warnings(self, loader: DataLoader) -> list[str]:
        """Return the warnings, one or two sentences each. Call it before `Checkpoint.settle`.

        Args:
            loader: of the sub-epoch. Only a model's first sub-epoch reports an untracked optimizer.
        """
        found = [self._without_effect(), self._seeded(), *self._replaced(), self._lost(), self._overwritten()]
        if loader.sub_epoch == 0:
            found.append(self._untracked())
        return [text for text in found if text]

    # --- weights -------------------------------------------------------------------------------------

    def _without_effect(self) -> str:
        weights = list(_weights(self._trainee.modules))
        # Each rank has parts of the weights, maybe none. All ranks take part; a change on any rank counts.
        has_changed = any(self._weights.get(name) != _digest(weight) for name, weight in weights)
        if any(self._trainee.of_ranks(has_changed)) or not self._weights:
            return ""
        return f"no weight changed in this sub-epoch: {self._why([weight for _, weight in weights])}"

    def _why(self, weights: Sequence[torch.Tensor]) -> str:
        if not any(weight.requires_grad for weight in weights):
            return "no parameter needs a gradient (requires_grad is False)"
        if only_single(self._trainee.modules):
            return "see the learning rate of its optimizer, and whether train() trains it"
        stepped = list(self._stepped.values())
        if not stepped:
            return "no optimizer of torch took a step"
        kinds = ", ".join(sorted({type(each).__name__ for each in stepped}))
        known = {id(weight) for weight in weights}
        groups = [group for each in stepped for group in each.param_groups]
        if not any(id(weight) in known for group in groups for weight in group["params"]):
            return (
                f"the optimizer that train() steps ({kinds}) has weights of other modules, for example because it "
                "was kept on self since the last sub-epoch. Make the optimizer in each call of train(), and call "
                "checkpoint.track(optimizer=optimizer)"
            )
        rates = [group.get("lr") for group in groups]  # Adafactor of transformers has None
        if all(rate is not None and float(rate) == 0.0 for rate in rates):
            return f"the learning rate of {kinds} is 0 after its last step"
        return f"{kinds} took steps, but they had no effect; see whether gradients are 0 and the rate is too small"

    # --- state that is lost ----------------------------------------------------------------------------

    def _untracked(self) -> str:
        checkpoint = self._trainee.checkpoint
        if _has_optimizer_state(
            {name: value for name, value in checkpoint.items() if name not in checkpoint.tracked}
        ):
            return ""  # user code saves the state itself, maybe as a copy
        saved = {id(tensor) for tensor in tensors(checkpoint.newest())}
        states = {
            type(each).__name__: {id(tensor) for tensor in tensors(dict(each.state))}
            for each in self._stepped.values()
        }
        lost = [name for name, state in states.items() if state and state.isdisjoint(saved)]
        if not lost:
            return ""
        return (
            f"the state of {', '.join(lost)} (such as momenta) is not saved, and starts empty in each sub-epoch: call "
            "checkpoint.track(optimizer=optimizer) before the loop over dataloader"
        )

    def _seeded(self) -> str:
        seed = torch.initial_seed()
        if seed == self._seed:
            return ""
        return (
            f"train() seeded torch with {seed}: with the same number in each sub-epoch, dropout and all else draw the "
            "same numbers again. Leave the seed out, because Cerebro seeds each sub-epoch"
        )

    def _replaced(self) -> Iterator[str]:
        now = self._trainee.modules
        if len(now) != len(self._modules):
            yield (
                f"train() changed the number of its models from {len(self._modules)} to {len(now)}: the next sub-epoch "
                "cannot load them. Make all of them in create_models()"
            )
            return
        swapped = [n for n, pair in enumerate(zip(self._modules, now, strict=True)) if pair[0] is not pair[1]]
        if swapped:
            yield (
                f"train() replaced module {swapped[0]} of its models: the next sub-epoch loads its weights into the "
                "module that create_models() makes"
            )
            return
        parameters = _parameters(now) if self._parameters else {}
        both = {**self._parameters, **parameters}
        names = [name for name in both if self._parameters.get(name) != parameters.get(name)]
        if names:
            yield (
                f"train() added, removed or replaced {_listed(names)}: the next sub-epoch makes the model by "
                "create_models() again, and a parameter that was put in an optimizer before is trained no further. "
                "Change the model in create_models()"
            )

    def _lost(self) -> str:
        now = dict(_unsaved(self._trainee.modules)) if self._unsaved else {}
        names = [name for name, mark in self._unsaved.items() if name in now and now[name] != mark]
        if not names:
            return ""
        return (
            f"{_listed(names)} changed in this sub-epoch, and is not saved with the model: the next one begins with "
            "what create_models() makes. Register a buffer with persistent=True for what has to live on"
        )

    def _overwritten(self) -> str:
        names = sorted(self._trainee.checkpoint.overwritten)
        if not names:
            return ""
        return (
            f"checkpoint[{names[0]!r}] was set, but checkpoint.track({names[0]}=...) has this name: the state of the "
            "tracked object is saved. Use another name"
        )


def _weights(modules: Sequence[torch.nn.Module]) -> list[tuple[str, torch.Tensor]]:
    """Return parameters that need a gradient; where none does, all parameters and buffers, which train() may set.

    Buffers alone would show nothing: statistics of a normalisation change without an optimizer.
    """
    parameters: list[tuple[str, torch.Tensor]] = [
        (f"{number}/{name}", weight)
        for number, module in enumerate(modules)
        for name, weight in module.named_parameters()
    ]
    if found := [each for each in parameters if each[1].requires_grad]:
        return found
    buffers = [
        (f"{number}/{name}", buffer)
        for number, module in enumerate(modules)
        for name, buffer in module.named_buffers()
    ]
    return [*parameters, *buffers]


def _digest(tensor: torch.Tensor) -> object:
    """Return a digest of a tensor. The sum of a GPU tensor is computed on the GPU."""
    if is_lazy(tensor):
        return None
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    local = local.detach()
    if local.device.type == "meta" or local.layout is not torch.strided or local.is_quantized:
        return tensor._version
    is_frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
    if is_frozen and local.nbytes >= _LARGE_FROZEN:
        return tensor._version
    if local.device.type == "cpu":
        return xxh3_64_intdigest(content(local))
    flat = local.contiguous().reshape(-1).view(torch.uint8)
    words = flat.view(torch.int32) if flat.numel() % 4 == 0 else flat
    return int(words.sum(dtype=torch.int64).item())


def _parameters(modules: Sequence[torch.nn.Module]) -> dict[str, int]:
    return {
        f"parameter {name!r} of module {number}": id(weight)
        for number, module in enumerate(modules)
        for name, weight in module.named_parameters()
    }


def _unsaved(modules: Sequence[torch.nn.Module]) -> Iterator[tuple[str, object]]:
    """Yield the unsaved state of modules: buffers that are not persistent, and plain attributes."""
    for number, module in enumerate(modules):
        for path, part in module.named_modules():
            if isinstance(part, LazyModuleMixin):
                continue
            where = f"of module {number}" + (f", {path}" if path else "")
            for name in sorted(part._non_persistent_buffers_set):
                buffer = part._buffers.get(name)
                yield f"buffer {name!r} {where}", None if buffer is None else _digest(buffer)
            for name, value in vars(part).items():
                if type(value) in _SCALARS and name != "training":
                    yield f"attribute {name!r} {where}", value
                elif type(value) is torch.Tensor:
                    yield f"attribute {name!r} {where}", _digest(value)


def _has_optimizer_state(value: object) -> bool:
    if isinstance(value, Mapping):
        return "param_groups" in value or any(map(_has_optimizer_state, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_optimizer_state, value))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

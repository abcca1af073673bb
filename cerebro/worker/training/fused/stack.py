"""Several models as one stack: a step computes all their losses and gradients, and steps their optimizers.

The parameters that the optimizers train are one matrix with a flat row per member; other parameters and buffers are
stacked one by one. While a member is in the stack, the tensors of its modules are views of its part. `training_step`
runs once per batch under `torch.vmap`, with a copy of the first member's modules that holds the stacked tensors. The
members' losses are independent, so the gradient of their sum has each member's gradient, and NaN stays in its member.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn, optim
from torch._C._functorch import _add_batch_dim, maybe_current_level

from cerebro.errors import NotApplicableError
from cerebro.frozen import Frozen
from cerebro.spec import Ratio
from cerebro.worker.training.fused.random_numbers import MemberDraws
from cerebro.worker.training.fused.recurrent import replacing_recurrent
from cerebro.worker.training.fused.row_optimizer import Place, RowOptimizer, require_elementwise
from cerebro.worker.training.fused.structure import require_alike, tensors

TrainingStep = Callable[[list[nn.Module], Mapping[str, Any]], Mapping[str, Any]]
"""Returns the metrics of a batch, "loss" among them, from modules and hyperparameters."""


class Model(NamedTuple):
    """A model to stack: its name, modules, optimizer with its state, hyperparameters and random numbers."""

    name: str
    modules: list[nn.Module]
    optimizer: optim.Optimizer
    hyperparams: Mapping[str, Any]
    generator: torch.Generator


class _Slot(NamedTuple):
    """An occurrence of a tensor in the copied modules, and the number of the tensor in the stack."""

    holder: dict[str, Any]
    name: str
    number: int


class Stack:
    """Several models that train together.

    Args:
        models: models with equal modules, at least one; their tensors become views.

    Attributes:
        modules: the modules that `training_step` gets.
        has_shared_layers: True if the layers in `cerebro.Frozen` are equal in all models; they compute once.

    Raises:
        NotApplicableError: the models differ, or an optimizer may combine weights.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = list(models)
        require_alike({each.name: each.modules for each in models})
        for each in models:
            require_elementwise(each.optimizer)
        self._draws = MemberDraws([each.generator for each in models])
        self._members = [_distinct(each.modules) for each in models]
        """The distinct tensors of each member, in equal order."""
        self._stack_tensors()
        self._hyperparams = _GroupHyperparams([each.hyperparams for each in models], self._weights.device)
        self._copy_modules()
        self._used: frozenset[int] = frozenset()
        """Numbers of the trained tensors that had a gradient in the latest step."""
        self._optimizers: list[RowOptimizer] = []
        self._num_gradients = 0
        """Batches in the current gradient."""
        self._with_gradient: set[int] = set()
        self._take_gradients()

    def _stack_tensors(self) -> None:
        size = len(self.models)
        stepped = [
            {id(each) for group in model.optimizer.param_groups for each in group["params"]}
            for model in self.models
        ]
        trained = [
            [number for number, each in enumerate(member) if each.requires_grad and id(each) in ids]
            for member, ids in zip(self._members, stepped, strict=True)
        ]
        self._trained = trained[0]
        for model, numbers in zip(self.models, trained, strict=True):
            if numbers != self._trained:
                raise NotApplicableError(
                    f"the optimizers of models {self.models[0].name} and {model.name} step different parameters, so "
                    "they cannot train as one stack"
                )
        firsts = [self._members[0][number] for number in self._trained]
        if len({(each.dtype, each.device) for each in firsts}) > 1:
            raise NotApplicableError("a stack needs trained parameters of one dtype on one device")
        ends = torch.tensor([0, *(each.numel() for each in firsts)]).cumsum(0).tolist()
        self._places = {
            number: Place(*place)
            for number, place in zip(self._trained, itertools.pairwise(ends), strict=True)
        }
        like = firsts[0].detach() if firsts else torch.empty(0)
        self._weights = torch.empty((size, ends[-1]), dtype=like.dtype, device=like.device)
        self._gradient = torch.zeros_like(self._weights)
        self._stacked: list[torch.Tensor] = []
        """Each distinct tensor with an axis for the members; unstacked if it is frozen and equal in all."""
        self._is_shared: list[bool] = []
        frozen = {
            id(tensor)
            for module in self.models[0].modules
            for part in module.modules()
            if isinstance(part, Frozen)
            for _, _, _, tensor in tensors([part])
        }
        for number, first in enumerate(self._members[0]):
            values = [member[number].detach() for member in self._members]
            is_frozen = id(first) in frozen or (
                isinstance(first, nn.Parameter) and number not in self._places
            )
            shared = is_frozen and all(torch.equal(values[0], each) for each in values[1:])
            if number in self._places:
                stacked = self._weights[:, slice(*self._places[number])].view(size, *first.shape)
                for row, each in zip(stacked, values, strict=True):
                    row.copy_(each)
                leaf = stacked.detach().requires_grad_()
                self._stacked.append(leaf)
            else:
                stacked = values[0] if shared else torch.stack(values)
                self._stacked.append(stacked)
            self._is_shared.append(shared)
            for position, member in enumerate(self._members):
                if not shared:
                    member[number].data = stacked[position]

        self.has_shared_layers = all(
            shared
            for first, shared in zip(self._members[0], self._is_shared, strict=True)
            if id(first) in frozen
        )

    def _take_gradients(self) -> None:
        """Move gradients of earlier batches into the matrix."""
        for member, row in zip(self._members, self._gradient, strict=True):
            for number, place in self._places.items():
                gradient = member[number].grad
                if gradient is not None:
                    row[slice(*place)] = gradient.reshape(-1)
                    self._with_gradient.add(number)
                    self._num_gradients = 1
                member[number].grad = None

    def _copy_modules(self) -> None:
        """Copy the first member's modules, without copying tensors."""
        modules = self.models[0].modules
        numbers = {id(each): number for number, each in enumerate(self._members[0])}
        memo: dict[int, Any] = {id(each): each for each in self._members[0]}
        try:
            self.modules = copy.deepcopy(modules, memo)
        except Exception as error:
            raise NotApplicableError(
                f"the modules of model {self.models[0].name} cannot be copied for a stack: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._slots = [
            _Slot(
                module._parameters if isinstance(tensor, nn.Parameter) else module._buffers,
                name,
                numbers[id(tensor)],
            )
            for _, module, name, tensor in tensors(self.modules)
        ]

    # --- steps ----------------------------------------------------------------------------------------

    def compute(self, training_step: TrainingStep, *, weight: float = 1.0) -> dict[str, Any]:
        """Compute the metrics of a batch, and add the gradient of its loss.

        Args:
            training_step: see `TrainingStep`.
            weight: factor of the loss in the gradient.

        Returns:
            Metrics by name, with "loss": tensors with one number per member, or plain numbers.

        Raises:
            Exception: errors of user code, and of `vmap` for functions that it does not support.
        """
        structure: dict[str, Any] = {}
        replaced: list[int] = []

        def run(stacked: list[torch.Tensor]) -> list[torch.Tensor]:
            for slot in self._slots:
                slot.holder[slot.name] = stacked[slot.number]
            structure.update(training_step(self.modules, self._hyperparams))
            computed = [part for value in structure.values() for part in _terms(value) if _is_tensor(part)]
            for slot in self._slots:  # a module may replace a buffer instead of changing it
                new = slot.holder.get(slot.name)
                if new is not stacked[slot.number] and isinstance(new, torch.Tensor):
                    replaced.append(slot.number)
                    computed.append(new)
            return computed

        with self._draws.replacing(), replacing_recurrent(self._draws):
            dims = [None if shared else 0 for shared in self._is_shared]
            computed = iter(torch.vmap(run, (dims,), randomness="error")(self._stacked))
        metrics: dict[str, Any] = {}
        for name, value in structure.items():
            terms = [next(computed) if _is_tensor(part) else part for part in _terms(value)]
            if name == "loss":
                self._add_gradient(terms[0], weight)
            terms = [each.detach() if _is_tensor(each) else each for each in terms]
            metrics[name] = Ratio(*terms) if isinstance(value, Ratio) else terms[0]
        with torch.no_grad():
            for number, value in zip(replaced, computed, strict=True):
                self._stacked[number].copy_(value)
        return metrics

    def _add_gradient(self, losses: torch.Tensor, weight: float) -> None:
        leaves = [self._stacked[number] for number in self._trained]
        total = losses.sum() if weight == 1 else (losses * weight).sum()
        gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(total, leaves, allow_unused=True)
        rows = [
            (torch.zeros_like(leaf) if gradient is None else gradient).reshape(len(self.models), -1)
            for leaf, gradient in zip(leaves, gradients, strict=True)
        ]
        if self._num_gradients == 0:
            torch.cat(rows, 1, out=self._gradient)
        else:
            self._gradient += torch.cat(rows, 1)
        self._num_gradients += 1
        self._with_gradient.update(
            number for number, each in zip(self._trained, gradients, strict=True) if each is not None
        )

    @torch.no_grad()
    def step(self, max_norms: Sequence[float] | None = None) -> None:
        """Step all optimizers with the gradient, and begin a new gradient.

        Args:
            max_norms: maximum norm of each member's gradient; `None` does not clip.
        """
        if max_norms is not None:
            norms = self._gradient.norm(dim=1, keepdim=True)
            limits = norms.new_tensor(max_norms).unsqueeze(1)
            self._gradient *= (limits / (norms + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        if self._with_gradient != self._used or not self._optimizers:
            self._make_optimizers()
        for optimizer in self._optimizers:
            optimizer.step()
        self._num_gradients = 0
        self._with_gradient = set()

    def _make_optimizers(self) -> None:
        """Make the rows' optimizers for the parameters that have a gradient: others are not stepped."""
        for optimizer in self._optimizers:
            optimizer.save_state()
        self._used = frozenset(self._with_gradient)
        self._optimizers = [
            RowOptimizer(
                model.optimizer,
                self._weights[position],
                self._gradient[position],
                {id(member[number]): self._places[number] for number in self._used},
            )
            for position, (model, member) in enumerate(zip(self.models, self._members, strict=True))
        ]

    # --- members --------------------------------------------------------------------------------------

    @contextmanager
    def separate(self, position: int) -> Iterator[None]:
        """Give a member's modules and optimizer separate tensors in the block, to save them."""
        member = self._members[position]
        views = [tensor.data for tensor in member]
        self.release(position)
        try:
            yield
        finally:
            for tensor, view in zip(member, views, strict=True):
                tensor.data, tensor.grad = view, None

    def release(self, position: int) -> None:
        """Give a member's modules and optimizer separate tensors, and the gradient of earlier batches."""
        if self._optimizers:
            self._optimizers[position].save_state()
        member = self._members[position]
        for tensor, is_shared in zip(member, self._is_shared, strict=True):
            if not is_shared:
                tensor.data = tensor.data.clone()
        for number in self._with_gradient:
            gradient = self._gradient[position, slice(*self._places[number])]
            member[number].grad = gradient.view(member[number].shape).clone()

    def without(self, positions: set[int]) -> Stack:
        """Return a stack of the other members. Release the members first; this one is not usable any more."""
        remaining = [position for position in range(len(self.models)) if position not in positions]
        for position in remaining:
            self.release(position)
        return Stack([self.models[position] for position in remaining])


class _GroupHyperparams(Mapping[str, Any]):
    """Hyperparameters of all members: a plain value if all are equal, else a tensor of the stack on its device."""

    def __init__(self, values: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        self._values, self._device = values, device

    def __getitem__(self, name: str) -> Any:
        numbers = [each[name] for each in self._values]
        first = numbers[0]
        if all(type(each) is type(first) and each == first for each in numbers):
            return first
        if not all(type(each) in (int, float) for each in numbers):
            raise NotApplicableError(
                f"training_step() reads the hyperparameter {name!r}, which is no number and differs between the models "
                "of the stack"
            )
        level = maybe_current_level()
        assert level is not None
        tensor = torch.tensor(numbers, dtype=torch.get_default_dtype(), device=self._device)
        return _add_batch_dim(tensor, 0, level)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values[0])

    def __len__(self) -> int:
        return len(self._values[0])


def _terms(value: Any) -> tuple[Any, ...]:
    return (value.numerator, value.denominator) if isinstance(value, Ratio) else (value,)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _distinct(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for _, _, _, tensor in tensors(modules)}.values())

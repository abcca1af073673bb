"""The optimizer of one member of a stack: steps the member's flat row of weights.

A member keeps the optimizer that `configure_optimizers` returned. Its settings are read before each step, so schedules
work, and `save_state` puts the state back into it. In between, neighbouring parameters of a group are one tensor, which
one kernel of torch steps (`kernels`). This needs an optimizer that treats each weight alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import optim

from cerebro.errors import NotApplicableError
from cerebro.worker.training.fused.kernels import KERNELS, Kernel

ELEMENTWISE: tuple[type[optim.Optimizer], ...] = (
    optim.Adadelta,
    optim.Adagrad,
    optim.Adam,
    optim.Adamax,
    optim.AdamW,
    optim.ASGD,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.SGD,
)
"""Optimizers whose step of a weight depends on no other weight."""

_SHARED = frozenset({"step", "mu_product", "eta", "mu"})
"""Names of states that are one number per parameter, equal for parameters with the same history."""


class Place(NamedTuple):
    """Place of a parameter in the flat row: its first element, and the element after its last one."""

    begin: int
    end: int


@dataclass(kw_only=True)
class Segment:
    """Neighbouring parameters of one group with an equal history, as one tensor.

    Attributes:
        group: number of the group in the member's optimizer.
        place: where the segment is in the row.
        weights: the segment of the row, with its gradient.
        state: the optimizer's state of `weights`.
    """

    group: int
    place: Place
    parameters: list[torch.nn.Parameter]
    weights: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    state: dict[str, Any] = field(default_factory=dict)


def require_elementwise(optimizer: Any) -> None:
    """Raise NotApplicableError if the optimizer's step of a weight may depend on other weights."""
    name = type(optimizer).__name__
    if type(optimizer) not in ELEMENTWISE:
        known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise NotApplicableError(
            f"a stack cannot step the optimizer {name}, because it may combine weights. It steps torch's {known}"
        )
    for group in optimizer.param_groups:
        for option in ("capturable", "differentiable"):
            if group.get(option):
                raise NotApplicableError(f"a stack cannot step the optimizer {name} with {option}=True")


class RowOptimizer:
    """Steps the weights of one member.

    Args:
        optimizer: the member's optimizer, with its state.
        row: the member's weights, one-dimensional; changed in place.
        gradient: their gradient, of the same shape.
        places: identity of each parameter to step -> its place in the row.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        row: torch.Tensor,
        gradient: torch.Tensor,
        places: Mapping[int, Place],
    ) -> None:
        self._optimizer = optimizer
        self._segments = _segments(optimizer, places)
        self._kernel: Kernel | None = KERNELS.get(type(optimizer))
        for segment in self._segments:
            segment.weights = row[slice(*segment.place)].detach()
            segment.weights.grad = gradient[slice(*segment.place)]
            states = [optimizer.state[each] for each in segment.parameters if each in optimizer.state]
            if states:
                segment.state = _joined(states)
        self._of_class = self._segments and self._kernel is None and self._create()

    def _create(self) -> optim.Optimizer:
        """Create an optimizer of the member's class for the segments."""
        groups = [
            {**_options(self._optimizer.param_groups[each.group]), "params": [each.weights]}
            for each in self._segments
        ]
        created: optim.Optimizer = type(self._optimizer)(groups)  # type: ignore[call-arg]  # lr is in each group
        for segment in self._segments:
            if segment.state:
                created.state[segment.weights] = segment.state
        return created

    @torch.no_grad()
    def step(self) -> None:
        """Take a step with the gradient and the current settings of the member's optimizer."""
        groups = self._optimizer.param_groups
        if self._kernel is not None:
            for segment in self._segments:
                self._kernel(segment.weights, segment.state, groups[segment.group])
        elif self._of_class:
            for segment, group in zip(self._segments, self._of_class.param_groups, strict=True):
                group.update(_options(groups[segment.group]))
            self._of_class.step()
            for segment in self._segments:
                segment.state = self._of_class.state[segment.weights]

    def save_state(self) -> None:
        """Copy the state into the member's optimizer."""
        for segment in self._segments:
            begin, state = 0, self._as_of_torch(segment)
            for parameter in segment.parameters if state else ():
                end = begin + parameter.numel()
                self._optimizer.state[parameter] = {
                    name: _copied(value)
                    if name in _SHARED or value is None
                    else value[begin:end].reshape(parameter.shape).clone()
                    for name, value in state.items()
                }
                begin = end

    def _as_of_torch(self, segment: Segment) -> dict[str, Any]:
        """Return a segment's state with the step on the host, as torch keeps it unless `fused` is set.

        On a GPU, a model that trains alone would wait for the step of each parameter.
        """
        if self._kernel is None or "step" not in segment.state:
            return segment.state
        is_fused = self._optimizer.param_groups[segment.group].get("fused")
        return segment.state if is_fused else {**segment.state, "step": segment.state["step"].cpu()}


def _segments(optimizer: optim.Optimizer, places: Mapping[int, Place]) -> list[Segment]:
    segments: list[Segment] = []
    previous: object = None
    for number, group in enumerate(optimizer.param_groups):
        listed = [each for each in group["params"] if id(each) in places]
        for parameter in sorted(listed, key=lambda each: places[id(each)]):
            place, state = places[id(parameter)], optimizer.state.get(parameter, {})
            history = number, sorted(state), [float(state[name]) for name in sorted(_SHARED & state.keys())]
            if segments and history == previous and segments[-1].place.end == place.begin:
                segments[-1].parameters.append(parameter)
                segments[-1].place = Place(segments[-1].place.begin, place.end)
            else:
                segments.append(Segment(group=number, place=place, parameters=[parameter]))
            previous = history
    return segments


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: _copied(value)
        if name in _SHARED or value is None
        else torch.cat([state[name].reshape(-1) for state in states])
        for name, value in states[0].items()
    }


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value

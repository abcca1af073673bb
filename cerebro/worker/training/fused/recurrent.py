"""Recurrent layers of a stack, computed step by step: `vmap` has no rule for torch's LSTM, GRU and RNN.

`stack` replaces torch's functions by these while it computes a step. torch's decompositions compute one layer;
dropout between layers is the stack's, because torch's decompositions omit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decompositions
from torch.nn import functional

from cerebro.worker.training.fused.random_numbers import MemberDraws

_VF: Any = torch._VF

_LAYERS: dict[str, tuple[Any, Any]] = {
    "lstm": (decompositions.lstm_impl, decompositions.lstm_data_impl),
    "gru": (decompositions.gru_impl, decompositions.gru_impl_data),
    "rnn_tanh": (decompositions.rnn_tanh_input, decompositions.rnn_tanh_data),
    "rnn_relu": (decompositions.rnn_relu_input, decompositions.rnn_relu_data),
}
"""Function of torch -> its decomposition for padded rows, and for packed ones."""


@contextmanager
def replacing_recurrent(draws: MemberDraws) -> Iterator[None]:
    """Replace torch's recurrent functions in the block."""
    try:
        for name in _LAYERS:
            setattr(_VF, name, _layers(name, draws))
        _VF.lstm_cell = _lstm_cell
        yield
    finally:
        for name in (*_LAYERS, "lstm_cell"):
            vars(_VF).pop(name, None)


def _layers(name: str, draws: MemberDraws) -> Callable[..., Any]:
    padded, packed = _LAYERS[name]

    def compute(rows: torch.Tensor, *arguments: Any) -> Any:
        is_packed = isinstance(arguments[2], list | tuple)
        batch_sizes, hidden, parameters, *options = arguments if is_packed else (None, *arguments)
        has_biases, num_layers, dropout, train, is_bidirectional, *batch_first = options
        is_transposed = bool(batch_first and batch_first[0])
        rows = rows.transpose(0, 1) if is_transposed else rows
        directions = 2 if is_bidirectional else 1
        per_layer = len(parameters) // num_layers
        last: list[tuple[torch.Tensor, ...]] = []
        for layer in range(num_layers):
            if layer:
                rows = draws.dropout(rows, dropout, train)
            parameters_here = parameters[layer * per_layer : (layer + 1) * per_layer]
            begin = _sliced(hidden, layer * directions, directions)
            tail = (has_biases, 1, 0.0, train, is_bidirectional)
            result = (
                packed(rows, batch_sizes, begin, parameters_here, *tail)
                if is_packed
                else padded(rows, begin, parameters_here, *tail, False)
            )
            rows, *state = result
            last.append(tuple(state))
        states = [torch.cat(parts) for parts in zip(*last, strict=True)]
        return (rows.transpose(0, 1) if is_transposed else rows, *states)

    return compute


def _sliced(hidden: Any, begin: int, count: int) -> Any:
    if isinstance(hidden, Sequence):
        return [each[begin : begin + count] for each in hidden]
    return hidden[begin : begin + count]


def _lstm_cell(
    rows: torch.Tensor, state: Sequence[torch.Tensor], *parameters: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    weight_ih, weight_hh, bias_ih, bias_hh = parameters
    assert weight_ih is not None
    assert weight_hh is not None
    hidden, cell = state
    gates = functional.linear(rows, weight_ih, bias_ih) + functional.linear(hidden, weight_hh, bias_hh)
    into, forget, new, out = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell

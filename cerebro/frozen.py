"""`Frozen`: layers that never train. Cerebro computes their outputs once and shares them between models.

User code wraps such layers in `create_models`. During a sub-epoch or an evaluation, the platform sets `Frozen.source`
(`cerebro.worker.training.frozen_layers`), which returns stored outputs. Without a source, the class computes. It knows
no files or devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cerebro.errors import SpecError


class Frozen(nn.Module):
    """Layers that never train: always in evaluation mode, without gradients.

    If the argument of a call is an input of the current batch, unchanged, Cerebro takes the outputs from a cache: it
    computes them once for each partition, and all models with the same layers share them. It computes any other
    argument directly, such as augmented images.

    The output for a row must depend on this row alone. The first computation checks some rows.

    Args:
        module: the layers. Called with one argument; returns a tensor, or a dict or tuple of tensors, with rows on the
            first axis. Load its weights from a file: random weights differ from model to model and share nothing.
        prepare: converts the inputs of a batch into the argument of `module`, such as a crop and a normalization.
            Default: no conversion.
        batch_rows: rows per call that fills the cache. Default 32.
        dtype: precision of the outputs, such as `torch.float16`, which halves the cache. The outputs of each call are
            rounded to it and keep their own dtype. Default: the dtype of the outputs.

    Example::

        def create_models(self, hyperparams):
            encoder = ResNet50()
            encoder.load_state_dict(self.weights)
            return [cerebro.Frozen(encoder, prepare=normalized), nn.Linear(2048, 10)]
    """

    def __init__(
        self,
        module: nn.Module,
        prepare: Callable[[Any], Any] | None = None,
        *,
        batch_rows: int = 32,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise SpecError(f"cerebro.Frozen got a {type(module).__name__}, expected a torch.nn.Module")
        if type(batch_rows) is not int or batch_rows < 1:
            raise SpecError(f"cerebro.Frozen(batch_rows={batch_rows!r}): expected a whole number from 1")
        if dtype is not None and not dtype.is_floating_point:
            raise SpecError(
                f"cerebro.Frozen(dtype={dtype}): expected a floating-point dtype such as torch.float16"
            )
        self.module, self.prepare = module, prepare
        self.batch_rows, self.dtype = batch_rows, dtype
        self.source: Callable[[Frozen, Any], Any] | None = None
        """Returns the outputs for an argument, or `None` to compute them. Set by the platform in a sub-epoch."""
        self.requires_grad_(False)
        self.train(False)

    @property
    def label(self) -> str:
        """Name for messages, such as ``Frozen(ResNet50)``."""
        return f"Frozen({type(self.module).__name__})"

    def train(self, mode: bool = True) -> Frozen:
        """Keep evaluation mode."""
        super().train(False)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Frozen:
        """Keep the parameters without gradients."""
        super().requires_grad_(False)
        return self

    def forward(self, inputs: Any) -> Any:
        """Return the outputs for `inputs`: stored ones for inputs of the current batch, else computed ones."""
        found = None if self.source is None else self.source(self, inputs)
        return self.compute(inputs) if found is None else found

    def compute(self, inputs: Any) -> Any:
        """Compute the outputs.

        Raises:
            SpecError: `module` returned something else than tensors.
        """
        with torch.no_grad():
            outputs = self.module(inputs if self.prepare is None else self.prepare(inputs))
            return self._rounded(outputs)

    def _rounded(self, outputs: Any) -> Any:
        if type(outputs) is dict and outputs:
            return {key: self._rounded(item) for key, item in outputs.items()}
        if type(outputs) is tuple and outputs:
            return tuple(self._rounded(item) for item in outputs)
        if not isinstance(outputs, torch.Tensor):
            raise SpecError(
                f"{self.label} returned a {type(outputs).__name__}: return a tensor, or a dict or tuple of tensors, "
                "with rows on the first axis, for example by a module that calls this one and selects tensors"
            )
        if self.dtype is None or not outputs.is_floating_point():
            return outputs
        return outputs.to(self.dtype).to(outputs.dtype)

"""Techniques: how one sub-epoch uses the devices of its worker, or of the workers of a gang.

A technique states whether it can train a model on some devices and the memory it needs, and it prepares the modules in
each rank's process. The model decides batch size, row order and number of steps. The user's training loop computes the
same result by every technique, up to rounding, unless the user chooses another precision. `base.py` has the interface,
`ranks.py` the rank groups, and `conformance.py` a test kit for new techniques. Which technique trains a model is
decided in `controller`, from trials. Importing the package does not import torch.
"""

from cerebro.spec import Hints
from cerebro.techniques.base import (
    DeviceSet,
    Group,
    Memory,
    ModelFacts,
    Params,
    Share,
    Technique,
)
from cerebro.techniques.checkpointing import Checkpointing
from cerebro.techniques.ddp import Ddp
from cerebro.techniques.fsdp import Fsdp, Offload
from cerebro.techniques.fused import Fused
from cerebro.techniques.named import resolve
from cerebro.techniques.pipeline import Pipeline
from cerebro.techniques.single import Single
from cerebro.techniques.tensor import Tensor

__all__ = [
    "Checkpointing",
    "Ddp",
    "DeviceSet",
    "Fsdp",
    "Fused",
    "Group",
    "Hints",
    "Memory",
    "ModelFacts",
    "Offload",
    "Params",
    "Pipeline",
    "Share",
    "Single",
    "Technique",
    "Tensor",
    "resolve",
]

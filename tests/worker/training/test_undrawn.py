"""Models that are restored without drawing their weights first: nobody can tell, whatever `create_models` does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

# Modes of torch import it when they are first used, for seconds; a worker's handler has done so.
import torch._dynamo
from torch import nn

from cerebro.spec import SubEpochSpec
from cerebro.worker.training.checkpoint import State
from cerebro.worker.training.unit import Trainee, create, created_for

CPU = torch.device("cpu")
Build = Callable[["Network"], object]


class Network(nn.Module):
    """Some layers, and what a test adds."""

    def __init__(self, add: Build) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
        self.embedding = nn.Embedding(4, 8, padding_idx=0)
        self.kept: Any = None
        add(self)


class Spec(SubEpochSpec):
    """Makes them; counts how often."""

    def __init__(self, *add: Build) -> None:
        self.add, self.calls = add, 0

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        self.calls += 1
        return [Network(add) for add in self.add]


def keep(value: Callable[[Network], Any]) -> Build:
    """Have a network keep a value."""
    return lambda network: setattr(network, "kept", value(network))


def buffer(*, is_saved: bool) -> Build:
    return lambda network: network.register_buffer("drawn", torch.randn(3), persistent=is_saved)


def tied(network: Network) -> None:
    network.head.weight = network.embedding.weight


def looked(network: Network) -> None:
    try:
        network.kept = float(network.layer.weight.detach()[0, 0])
    except Exception:  # noqa: BLE001 - as user code may
        network.kept = 0.0


def fork(network: Network) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network.register_parameter("p", nn.Parameter(torch.rand(3)))


def generator(network: Network) -> torch.Generator:
    made = torch.Generator().manual_seed(2)
    nn.init.normal_(network.layer.weight, generator=made)
    return made


def closure(drawn: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: drawn


class Own(nn.Linear):
    """Leaves what it has in its place when a state is loaded."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        return None


SPARED: dict[str, Build] = {
    "layers": lambda network: None,
    "tied": tied,
    "buffer": buffer(is_saved=True),
    "derived": lambda network: network.register_parameter("p", nn.Parameter(network.layer.weight * 2)),
    "derived in place": lambda network: network.layer.weight.data.mul_(0.1).add_(1),
    "other layers": lambda network: network.add_module(
        "more",
        nn.Sequential(nn.LSTM(3, 4), nn.Conv2d(2, 3, 3), nn.BatchNorm1d(3), nn.MultiheadAttention(4, 2)),
    ),
    "weight norm": lambda network: nn.utils.parametrizations.weight_norm(network.layer),
    "orthogonal": lambda network: nn.init.orthogonal_(network.layer.weight),
    "pretrained": lambda network: network.layer.load_state_dict(
        {"weight": torch.ones(8, 8), "bias": torch.zeros(8)}
    ),
    "forgotten": lambda network: torch.rand(5).sum(),
    "half": lambda network: network.half(),
    "numpy": keep(lambda network: np.random.rand()),
    "computed": lambda network: network.register_buffer("angles", torch.arange(6.0).sin(), persistent=False),
    "fork": fork,
}
"""What needs no draw."""


DRAWN: dict[str, Build] = {
    "attribute": keep(lambda network: torch.randn(3)),
    "of an attribute": keep(lambda network: [torch.randn(3) * 2]),
    "hidden buffer": buffer(is_saved=False),
    "closure": keep(lambda network: closure(torch.rand(3))),
    "number": keep(lambda network: network.layer.weight[0, 0].item()),
    "list": keep(lambda network: network.layer.weight.detach().tolist()),
    "array": keep(lambda network: network.layer.weight.detach().numpy().sum().item()),
    "text": keep(lambda network: str(network.layer.weight)),
    "pickle": keep(lambda network: pickle.loads(pickle.dumps(network.layer)).weight.detach()),
    "count": keep(lambda network: len(torch.unique(torch.randint(0, 5, (10,))))),
    "decision": keep(lambda network: bool((network.layer.weight > 0).all())),
    "initial state": keep(lambda network: copy.deepcopy(network.state_dict())),
    "storage": keep(
        lambda network: bytes(
            network.layer.weight.untyped_storage().tolist()  # type: ignore[no-untyped-call]
        )
    ),
    "looked": looked,
    "a part": lambda network: network.register_parameter("p", nn.Parameter(torch.rand(10)[:3])),
    "a generator": keep(generator),
    "own loading": lambda network: setattr(network, "layer", Own(8, 8)),
    "truncated": lambda network: nn.init.trunc_normal_(network.layer.weight),
}
"""What must be drawn: something else than a state's tensors depends on it."""


def saved(spec: SubEpochSpec) -> State:
    """A state that was trained to something else."""
    modules = create(spec, {}, seed=9, model="other", device=CPU).modules
    return {"models": [copy.deepcopy(module.state_dict()) for module in modules], "checkpoint": {"n": 3}}


def content(trainee: Trainee) -> tuple[list[Any], list[torch.Tensor]]:
    """All that there is to see of its modules: what is compared by ``==``, and tensors."""
    plain: list[Any] = []
    tensors: list[torch.Tensor] = []
    for module in trainee.modules:
        found = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
        kept = getattr(module, "kept", None)
        kept = kept() if callable(kept) else kept.get_state() if isinstance(kept, torch.Generator) else kept
        if isinstance(kept, Mapping):
            found |= {f"kept {name}": tensor for name, tensor in kept.items()}
        elif isinstance(kept, torch.Tensor):
            found["kept"] = kept
        elif isinstance(kept, list) and isinstance(kept[0], torch.Tensor):
            found["kept"] = kept[0]
        else:
            plain.append(kept)
        plain += found
        tensors += found.values()
    return plain, tensors


@pytest.mark.parametrize(
    ("name", "is_drawn"), [*((name, False) for name in SPARED), *((name, True) for name in DRAWN)]
)
def test_a_model_is_restored_as_if_it_was_drawn(name: str, is_drawn: bool) -> None:
    """The same parameters, buffers and attributes, to the bit; what needs a draw gets it."""
    spec = Spec((SPARED | DRAWN)[name])
    state = saved(spec)
    spec.calls = 0
    given: dict[str, Any] = {"seed": 1, "model": "m00", "device": CPU}
    trainee, found = created_for(lambda: state, spec, {}, **given)
    assert (trainee.is_drawn, spec.calls, found) == (is_drawn, 1 + is_drawn, state)
    assert (trainee.is_new, dict(trainee.checkpoint)) == (False, {"n": 3})
    expected, _ = created_for(lambda: state, spec, {}, **given, is_drawn=True)
    assert spec.calls == 2 + is_drawn
    (plain, tensors), (same, others) = content(trainee), content(expected)
    assert plain == same
    torch.testing.assert_close(tensors, others, rtol=0.0, atol=0.0)
    assert len(list(trainee.modules[0].parameters())) == len(list(expected.modules[0].parameters()))
    assert all(one.requires_grad and one.is_leaf for one in trainee.modules[0].parameters())


def test_two_modules_of_which_one_is_a_copy() -> None:
    """As an average of the weights begins."""

    class Pair(Spec):
        def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
            (network,) = super().create_models(hyperparams)
            return [network, copy.deepcopy(network)]

    spec = Pair(SPARED["tied"])
    state = saved(spec)
    trainee, _ = created_for(lambda: state, spec, {}, seed=1, model="m00", device=CPU)
    assert not trainee.is_drawn
    for module, wanted in zip(trainee.modules, state["models"], strict=True):
        torch.testing.assert_close(dict(module.state_dict()), dict(wanted), rtol=0.0, atol=0.0)


def test_what_user_code_raises_is_raised() -> None:
    """Once more, as it would have been."""

    def fails(network: Network) -> None:
        raise ValueError(f"{network.layer.weight[0, 0]:.1f}"[:0] + "no such size")

    with pytest.raises(ValueError, match="no such size"):
        created_for(dict, Spec(fails), {}, seed=1, model="m00", device=CPU)

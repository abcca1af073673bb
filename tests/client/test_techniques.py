"""Technique names and objects are checked before a request is sent."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from cerebro.client.requests.techniques import Parallelism, resolve_techniques
from cerebro.commands.planning import parallel_plans_of
from cerebro.contract.parallel_plans import TechniqueChoice
from cerebro.contract.records import CodeRecord
from cerebro.contract.runs import FitRequest
from cerebro.errors import SpecError
from cerebro.techniques import DeviceSet, Group, Hints, ModelFacts, Params, Technique
from cerebro.usercode.encoding import decode

WORKERS = {"worker-0": 2, "worker-1": 4}


class UserTechnique(Technique):
    """A user's technique."""

    name = "own"
    version = 3
    least = 2

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        return ""

    def prepare(self, modules: list[Any], group: Group, params: Params, hints: Hints) -> None: ...


class Borrowed(UserTechnique):
    """Has the name of another technique."""

    name = "ddp"


def fields(
    techniques: Any = None, gpus: Any = None, trials: Any = "auto", *, workers: dict[str, int] = WORKERS
) -> tuple[dict[str, Any], list[CodeRecord]]:
    """Return the request's fields and the code to send."""
    sent: list[CodeRecord] = []

    def put_code(code: CodeRecord) -> CodeRecord:
        sent.append(code)
        return code

    parallelism = Parallelism(techniques=techniques, gpus=gpus, trials=trials)
    return resolve_techniques(parallelism, workers=workers, put_code=put_code), sent


def test_names_and_objects_may_be_mixed() -> None:
    """A name means the technique with its defaults; a user's technique is sent as code after all checks."""
    found, sent = fields(["ddp", UserTechnique(slices=[1, 2])], [2, 4], "never")
    ddp, own = found["techniques"]
    assert (ddp.name, ddp.least, ddp.params, ddp.code) == ("ddp", 2, {}, None)
    assert (own.name, own.version, own.least, own.params) == ("own", 3, 2, {"slices": [1, 2]})
    (code,) = sent
    assert own.code == code.sha256
    assert decode(code.encoded).fixed == {"slices": [1, 2]}
    assert (found["gpus"], found["trials"]) == ((2, 4), "never")


@pytest.mark.parametrize(
    ("techniques", "gpus", "message"),
    [
        ([], None, r"techniques is empty: leave it out"),
        ("ddp", None, r"techniques is 'ddp', expected a list"),
        (["dpp"], None, r"no technique 'dpp'\. Choose among single, .*fsdp"),
        (["ddp", "ddp"], None, r"names 'ddp' twice"),
        ([UserTechnique(), UserTechnique()], None, r"names 'own' twice"),
        ([UserTechnique], None, r"pass UserTechnique\(\) instead of UserTechnique"),
        ([3], None, r"3 in techniques is not a technique\. Choose among single"),
        ([Borrowed()], None, r"Borrowed has the name 'ddp' of a built-in technique"),
        (
            [UserTechnique(module=object())],
            None,
            r"parameter 'module' of UserTechnique is <object .*: expected a JSON value",
        ),
        (None, [0], r"gpus has 0, expected .* at least 1: numbers of devices"),
        (None, [True], r"gpus has True"),
        (None, [1.0], r"gpus has 1\.0"),
        (None, 2, r"gpus is 2, expected a list"),
        (None, [], r"gpus is \[\], expected a list"),
        (None, [2, 2], r"name each number once"),
        (None, [1, 8], r"8, but no worker has as many devices: choose at most 4.*worker-0: 2, worker-1: 4"),
        (["ddp"], [1], r"on 1 devices \(ddp 2 or more\).*worker-0: 2, worker-1: 4"),
        (["single", "offload"], [2], r"on 2 devices \(single takes 1; offload takes 1\)"),
    ],
)
def test_an_impossible_choice_is_refused(techniques: object, gpus: object, message: str) -> None:
    """The error lists the choices, or the workers with their devices."""
    with pytest.raises(SpecError, match=message):
        fields(techniques, gpus)


def test_two_devices_are_refused_if_workers_have_one() -> None:
    """The model would wait for ever."""
    with pytest.raises(SpecError, match=r"on 1 devices.*The workers and their devices: worker-0: 1"):
        fields(["ddp"], workers={"worker-0": 1})


def test_a_technique_that_no_worker_can_use_is_not_sent() -> None:
    """The workers are checked before the upload."""

    def put_code(code: CodeRecord) -> CodeRecord:
        raise AssertionError(f"{code.class_name} was sent")

    with pytest.raises(SpecError, match="on 1 devices"):
        resolve_techniques(
            Parallelism(techniques=[UserTechnique()]), workers={"worker-0": 1}, put_code=put_code
        )


@pytest.mark.parametrize(
    ("gang", "more", "message"),
    [
        (0, {}, "gang is 0, expected the number of workers"),
        (True, {}, "gang is True, expected"),
        (3, {}, r"gang is 3, but 2 workers train \(worker-0, worker-1\)"),
        (2, {"techniques": ["single"]}, "none of the techniques can be used by a gang of 2 workers"),
        (2, {"gpus": [4]}, r"gang is 2, but fewer workers have 4 devices.*worker-0: 2, worker-1: 4"),
        (
            2,
            {"solo_workers": ["worker-1"]},
            "gang is 2, but worker-1 cannot train with other workers: set worker.gangs.enabled",
        ),
    ],
)
def test_an_impossible_gang_is_refused(gang: Any, more: dict[str, Any], message: str) -> None:
    """The error lists the workers, and the option to set."""
    given = {"techniques": None, "gpus": None, "solo_workers": ()} | more
    with pytest.raises(SpecError, match=message):
        resolve_techniques(
            Parallelism(techniques=given["techniques"], gpus=given["gpus"], gang=gang),
            workers=WORKERS,
            solo_workers=given["solo_workers"],
            put_code=lambda code: code,
        )


def test_gang_plans_come_first_and_use_all_devices_of_their_workers() -> None:
    """A remaining partition is trained by one worker."""
    assert [parallel_plan.label for parallel_plan in parallel_plans_of(None, (), WORKERS, gang_size=2)][
        :3
    ] == [
        "ddp-2x2",
        "fsdp-2x2",
        "single",
    ]
    named = [TechniqueChoice(name="ddp", least=2)]
    assert [
        parallel_plan.label for parallel_plan in parallel_plans_of(named, (1,), {"a": 1, "b": 1}, gang_size=2)
    ] == ["ddp-2x1", "single"]


@pytest.mark.parametrize(("name", "is_refused"), [("fused", True), ("ddp", False)])
def test_groups_need_one_order_of_batches_for_all_models(name: str, is_refused: bool) -> None:
    """Without the field, a model that leaves its group would continue in another order."""
    fields = {"code": "0" * 64, "models": [{"lr": 0.1}], "epochs": 1, "metric": "loss", "mode": "min"}
    request = fields | {"techniques": [{"name": name}]}
    with pytest.raises(ValidationError, match="set has_shared_order") if is_refused else nullcontext():
        FitRequest.model_validate(request)
    FitRequest.model_validate(request | {"has_shared_order": True})

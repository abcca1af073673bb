"""Base classes of all contract models, and types shared by many: names, hashes, splits, device numbers, paths."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints


def _ascending(devices: tuple[int, ...]) -> tuple[int, ...]:
    if list(devices) != sorted(set(devices)):
        raise ValueError("devices are numbered from 0; name each once, in ascending order")
    return devices


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$")]
"""A name of 1 to 50 characters that is safe as a folder, a key and a part of a URL."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

Split = Annotated[str, StringConstraints(pattern=r"^(train|valid|test|predict)$")]

Devices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], AfterValidator(_ascending)]
"""Numbers of some devices of one worker, ascending; `()` for a task that needs no device."""

RelativePath = Annotated[
    str, StringConstraints(pattern=r"^\.?[\w+-][\w.+-]*(/\.?[\w+-][\w.+-]*)*$", max_length=500)
]
"""A path that stays below its folder: not absolute, without ``..``."""

SPLITS = ("train", "valid", "test", "predict")


class Contract(BaseModel):
    """Base of all models: frozen, and strict about unknown fields, so that a misspelt field is an error."""

    # ser_json_inf_nan: a reported metric may be NaN; JSON `null` would hide it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=()
    )


class LateContract(Contract):
    """A contract whose validator is built at first use. Services without tasks, such as the page, save these
    large validators."""

    model_config = ConfigDict(defer_build=True)

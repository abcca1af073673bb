"""The one pydantic base of the contract, and the ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$")]
"""A name that is safe as a folder, a key and a part of a URL."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

Split = Annotated[str, StringConstraints(pattern=r"^(train|valid|test|predict)$")]

SPLITS = ("train", "valid", "test", "predict")


class Contract(BaseModel):
    """Frozen, and strict about unknown fields, so that a misspelt field is an error at the boundary."""

    # ser_json_inf_nan: a metric may be NaN on its way to being reported; JSON `null` would hide it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=()
    )

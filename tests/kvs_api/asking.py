"""Send valid and invalid requests to an API and compare its responses with the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hypothesis
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.waiting import HANG_S

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
]  # fmt: skip
"""No 5xx; the status, media type and body are documented."""


def undocumented(
    document: dict[str, Any], address: str, token: str, *, examples: int, known: Mapping[str, str]
) -> list[str]:
    """Return a paragraph for each kind of undocumented response; requests are deterministic.

    Args:
        examples: valid and invalid requests per operation, each.
        known: path parameter -> an existing value, used by half of the requests.
    """
    schema = schemathesis.openapi.from_dict(document)
    wrong: list[str] = []
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]  # one that cannot be read raises here
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _send_requests(operation, mode, address, token, examples, known)
            except (FailureGroup, ExceptionGroup) as group:
                wrong += [f"{operation.label} ({mode.value}): {each}" for each in group.exceptions]
            except hypothesis.errors.Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE  # no invalid request exists for it
    return wrong


def _send_requests(
    operation: Any, mode: GenerationMode, address: str, token: str, examples: int, known: Mapping[str, str]
) -> None:
    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
    def send(case: Any, is_known: bool) -> None:
        if is_known and case.path_parameters:
            case.path_parameters = {**case.path_parameters, **_of(known, case.path_parameters)}
        for place in (case.query, case.body):  # news is tested elsewhere
            if isinstance(place, dict) and isinstance(place.get("wait_s"), int | float | str):
                place["wait_s"] = 0
        answer = case.call(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=HANG_S)
        case.validate_response(answer, checks=CHECKS)

    send()


def _of(known: Mapping[str, str], expected: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in known.items() if name in expected}

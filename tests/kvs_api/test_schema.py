"""All kvs_api responses match the OpenAPI document."""

from __future__ import annotations

import json

import pytest

from kvs_api.api.views import openapi_document, package_version
from tests.kvs_api.asking import undocumented
from tests.kvs_api.bench import Bench, requested
from tests.kvs_api.real import TOKEN, Service


@pytest.mark.slow
def test_every_answer_is_documented(service: Service) -> None:
    """Status, media type and body are documented, and no 5xx occurs."""
    kvs = service.client()
    Bench(store=kvs, pass_a_moment=lambda: None).run_until("start")
    kvs.append("one", requested("etl-2"))
    kvs.close()
    wrong = undocumented(
        json.loads(openapi_document(package_version())),
        service.address,
        TOKEN,
        examples=20,
        known={"name": "one"},
    )
    assert not wrong, "\n\n".join(wrong)


def test_an_undocumented_status_is_found(service: Service) -> None:
    """Removes a status from the document to show that the check can fail."""
    whole = json.loads(openapi_document(package_version()))
    path = "/v1/experiments/{name}"
    get = whole["paths"][path]["get"]
    del get["responses"]["404"]
    cut = {**whole, "paths": {path: {"get": get}}}
    wrong = undocumented(cut, service.address, TOKEN, examples=3, known={})
    assert any("Received: 404" in fault for fault in wrong), wrong

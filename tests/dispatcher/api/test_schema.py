"""Every answer matches the OpenAPI document, including answers forwarded from a real store."""

from __future__ import annotations

import json

import pytest

from tests.dispatcher.api.gateways import Served, served
from tests.dispatcher.stories import running_story
from tests.kvs_api.asking import undocumented
from tests.kvs_api.log_replay import replay
from tests.kvs_api.real import TOKEN, Service

__all__ = ["served"]


@pytest.mark.slow
def test_every_answer_is_documented(service: Service, served: Served) -> None:
    """No 5xx and no undocumented status, media type or body, for a fit in progress."""
    story, kvs = running_story(), service.client()
    kvs.create_experiment(story.record)
    replay(kvs, "digits", story.events)
    kvs.close()
    document = json.loads(served.ask("GET", "/openapi.json").data)
    known = {"name": "digits", "model": "m00", "sha256": "0" * 64}
    wrong = undocumented(document, served.address, TOKEN, examples=8, known=known)
    assert not wrong, "\n\n".join(wrong)

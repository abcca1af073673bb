"""The message protocols between agent, child, task processes and gang workers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.base import Contract
from cerebro.worker.protocol import messages
from cerebro.worker.protocol.messages import MessageError, NoMessageError, Protocol, encode
from tests.kvs_api.occupancy_contract import sub_epoch_body

PROTOCOLS: list[Protocol[Any]] = [each for each in vars(messages).values() if isinstance(each, Protocol)]
BODY = sub_epoch_body("fit-1/train/m00/e1/p0", None).model_dump(mode="json")
FAILED = {"failure": {"kind": "crash", "message": "it ended"}, "failed_at": 2.5}
RANKS = {"rank": 1, "size": 2, "folder": "/ranks", "address": "10.0.0.1"}
CODES = {"a" * 64: "code"}

EXAMPLES: dict[str, dict[str, Any]] = {
    "Run": {
        "body": BODY, "attempt": 1, "codes": CODES, "log": "/log", "received_at": 1.5, "ranks": RANKS, "depth": 1,
    },
    "Preload": {"body": BODY},
    "FreeMemory": {},
    "Preempt": {"reason": "SIGTERM", "grace_s": 30.0},
    "Rendezvous": {"address": "10.0.0.1:1"},
    "Forward": {"answer": FAILED},
    "StartRank": {"ranks": RANKS},
    "Ready": {},
    "Progress": {
        "rows": 8, "rows_failed": 1, "total_rows": 64, "batch": 2, "start_s": 0.5, "values": {"loss": float("nan")},
    },
    "Saved": {
        "savepoint": {"checkpoint": {"name": "one/a.pt", "checksum": "0", "size": 1}, "batch": 2, "rows": 8},
    },
    "Done": {"result": {"rows": 64, "metrics": {"loss": float("inf")}}},
    "Failed": FAILED,
    "Preempted": {},
    "MemberEnded": {"member": 3, "answer": FAILED},
    "GroupEnded": {},
    "RankPosition": {"batch": 3, "operations": 7},
    "WorkerLeaves": {"reason": "SIGTERM", "grace_s": 30.0},
    "ServeAgent": {"unread": "\n{", "codes": CODES},
    "TaskFinished": {"unread": "", "log": "/log", "codes": CODES, "must_exit_first": True},
    "NeedsOtherParent": {"unread": "\n{"},
    "AgentGone": {},
}  # fmt: skip

numbers = st.floats(allow_nan=False)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)
CASES = [(protocol, name) for protocol in PROTOCOLS for name in protocol.types]


@pytest.mark.parametrize(
    ("protocol", "name"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_message_of_each_protocol_round_trips(protocol: Protocol[Any], name: str) -> None:
    """NaN and infinity are included."""
    message: Contract = protocol.types[name].model_validate(EXAMPLES[name])
    line = encode(message)
    assert b"\n" not in line
    assert repr(protocol.decode(line)) == repr(message)


@given(
    reason=st.text(),
    grace_s=numbers,
    values=st.dictionaries(st.text(max_size=9), st.floats(), max_size=3),
    rows=st.integers(min_value=0),
)
def test_any_content_round_trips(reason: str, grace_s: float, values: dict[str, float], rows: int) -> None:
    """Line breaks and numbers of any size stay on one line."""
    progress = messages.Progress(
        rows=rows, rows_failed=0, total_rows=rows, batch=1, start_s=0.0, values=values
    )
    assert repr(messages.FROM_CHILD.decode(encode(progress))) == repr(progress)
    preempt = messages.Preempt(reason=reason, grace_s=grace_s)
    assert messages.TO_CHILD.decode(encode(preempt)) == preempt


@given(
    protocol=st.sampled_from(PROTOCOLS),
    name=st.text() | st.sampled_from(sorted(EXAMPLES)),
    fields=st.dictionaries(st.text(), anything, max_size=3),
)
def test_a_line_is_a_message_of_the_protocol_or_refused_by_name(
    protocol: Protocol[Any], name: str, fields: dict[str, Any]
) -> None:
    """No content raises another error."""
    line = json.dumps({**fields, "type": name}).encode()
    try:
        accepted = type(protocol.decode(line)).__name__
    except MessageError as error:
        refusal = str(error)
        accepted = None
    assert accepted == name or repr(name[:40]) in refusal


@given(line=st.binary() | anything.map(lambda value: json.dumps(value).encode()))
def test_other_lines_are_no_messages(line: bytes) -> None:
    """Covers text, and JSON without a type."""
    with pytest.raises(NoMessageError):
        messages.FROM_CHILD.decode(line)


def test_a_malformed_message_is_refused_with_its_name_and_field() -> None:
    """Covers wrong types, missing and unknown fields, and deep nesting."""
    refusals = {
        b'{"type": "Progress", "rows": "x"}': "malformed message 'Progress': rows: ",
        b'{"type": "Done"}': "malformed message 'Done': result: ",
        b'{"type": "Ready", "more": 1}': "malformed message 'Ready': more: ",
        b'{"type": "Run"}': "unknown message 'Run'",
        b'{"type": "' + b"x" * 99 + b'"}': f"unknown message '{'x' * 40}'",
    }
    for line, text in refusals.items():
        with pytest.raises(MessageError, match=text):
            messages.FROM_CHILD.decode(line)

"""After any order of cluster changes and connection faults, the view equals the cluster."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.controller.kubernetes.emulator import SET, Emulator, Fault
from tests.controller.kubernetes.pods import deleted, pod
from tests.controller.kubernetes.watching import Watched

_ORDINALS = st.integers(0, 3)

_FAULTS = (
    Fault(verb="watch"),
    Fault(verb="watch", status=429, headers={"Retry-After": "0"}),
    Fault(verb="watch", status=500),
    Fault(verb="watch", status=410),
    Fault(
        verb="watch",
        line=b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}\n',
    ),
    Fault(verb="watch", line=b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n'),
    Fault(verb="watch", line=b'{"type": "DELETED", "obj'),
    Fault(verb="list"),
    Fault(verb="list", status=503),
    Fault(verb="list", status=410),
)

_Step = Callable[[Emulator], None]


def _appears(ordinal: int, uid: str) -> _Step:
    return lambda emulator: emulator.put("pods", pod(ordinal, uid))


def _leaves(ordinal: int) -> _Step:
    return lambda emulator: emulator.put("pods", deleted(pod(ordinal)))


def _goes(ordinal: int) -> _Step:
    return lambda emulator: emulator.delete("pods", f"{SET}-{ordinal}")


def _is_scaled(size: int) -> _Step:
    return lambda emulator: emulator.scale(size)


def _fails(fault: Fault) -> _Step:
    return lambda emulator: emulator.fail(fault)


_STEPS = st.lists(
    st.one_of(
        st.builds(_appears, _ORDINALS, st.sampled_from(("a", "b"))),
        st.builds(_leaves, _ORDINALS),
        st.builds(_goes, _ORDINALS),
        st.builds(_is_scaled, st.integers(1, 4)),
        st.builds(_fails, st.sampled_from(_FAULTS)),
        st.just(Emulator.end_watches),
        st.just(Emulator.bookmark),
        st.just(Emulator.compact),
    ),
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=_STEPS, after=_STEPS, is_settled=st.booleans())
def test_the_view_finally_equals_the_cluster(
    before: list[_Step], after: list[_Step], is_settled: bool
) -> None:
    """Steps happen before the first list, and while watches run, break, are refused or expire."""
    emulator = Emulator()
    emulator.scale(2)
    for step in before:
        step(emulator)
    with Watched(emulator).watching() as watched:
        if is_settled:
            watched.sees_the_truth()
        for step in after:
            step(emulator)
        watched.sees_the_truth()

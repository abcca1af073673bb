"""Log segments preserve entries byte for byte and detect damage."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvs_api.logs.segments import DamagedSegmentError, Entry, decode, encode

TEXTS = st.one_of(
    st.binary(max_size=60).map(lambda text: text.replace(b"\n", b" ")),
    st.builds(
        lambda task, number, checksum, value: (
            f'{{"type":"TaskCommitted","task":"fit-1/train/m{task:03}/e1","rows":{number},"x":{value!r},'
            f'"checksum":"{checksum:016x}","note":"100 %"}}'
        ).encode(),
        st.integers(0, 30),
        st.integers(),
        st.integers(0, 2**64 - 1),
        st.floats(),
    ),
)
ENTRIES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 2_000), st.none() | st.integers(0, 9), TEXTS),
    min_size=1,
    max_size=40,
)


@given(steps=ENTRIES)
def test_decoding_restores_the_encoded_entries(steps: list[tuple[int, int, int | None, bytes]]) -> None:
    """Covers gaps in the numbers, equal times and events that are not JSON."""
    number, time, entries = 0, 1_764_000_000_000, []
    for step, later, cluster, event in steps:
        number, time = number + step, time + later
        entries.append(Entry(number, time, cluster, event))
    assert decode(encode(entries)) == entries


@given(at=st.integers(0, 10_000), byte=st.integers(1, 255))
def test_a_damaged_segment_is_noticed_or_the_same(at: int, byte: int) -> None:
    """Any byte may differ. Files also have a checksum, so this is the last check."""
    entries = [Entry(number, 1000 * number, None, b'{"rows":%d}' % number) for number in range(1, 50)]
    content = bytearray(encode(entries))
    content[at % len(content)] ^= byte
    try:
        assert decode(bytes(content)) == entries
    except DamagedSegmentError:
        pass


def test_a_sub_epoch_needs_less_than_eighty_bytes() -> None:
    """A sub-epoch has three events with five random numbers and a checksum."""
    random = Random(1)
    entries: list[Entry] = []
    for sub_epoch in range(3000):
        task = f"fit-1/train/m{sub_epoch % 1000:04}/e1/p{random.randrange(100)}"
        names = ("loss", "accuracy", "load_s", "compute_s", "save_s")
        numbers = ",".join(f'"{name}":{random.random()!r}' for name in names)
        result = f',"result":{{{numbers},"checksum":"{random.getrandbits(64):016x}"}}'
        for kind, more in (("TaskAssigned", ""), ("TaskStarted", ""), ("TaskCommitted", result)):
            event = (
                f'{{"type":"{kind}","task":"{task}","attempt":1,"worker":"worker-{sub_epoch % 100}"{more}}}'
            )
            entries.append(Entry(len(entries) + 1, 10 * len(entries), 7, event.encode()))
    assert len(encode(entries)) < 80 * 3000

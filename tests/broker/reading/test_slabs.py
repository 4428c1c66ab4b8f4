from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.broker.reading.slabs import MAX_ENTRIES, Slab, SlabWriter, slab_bytes
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.entries.rows import StoredEntry

ROOM_BYTES = 200


def stored(ledger: int, entry: int, data: bytes) -> StoredEntry:
    return StoredEntry(LedgerId(ledger), EntryId(entry), data)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.binary(max_size=40)), max_size=20),
    st.integers(0, 5),
    st.integers(1, 6),
    st.integers(0, 100),
)
def test_entries_put_into_a_slab_are_taken_out(
    puts: list[tuple[int, int, bytes]], first: int, count: int, max_bytes: int
) -> None:
    entries = {(ledger, entry): data for ledger, entry, data in puts}
    memory = memoryview(bytearray(slab_bytes(ROOM_BYTES)))
    writer = SlabWriter(memory)
    kept: dict[tuple[int, int], bytes] = {}
    for (ledger, entry), data in entries.items():
        if writer.add(stored(ledger, entry, data)):
            kept[ledger, entry] = data
        else:
            assert sum(map(len, kept.values())) + len(data) > ROOM_BYTES
            break
    runs = writer.finish()
    assert [(run.ledger, entry) for run in runs for entry in range(run.first, run.end)] == list(kept)
    if not kept:
        return
    slab = Slab(memory, runs)
    last = list(kept)[-1]
    assert slab.next == (last[0], last[1] + 1)
    for ledger in range(1, 4):
        taken = slab.copy_entries(ledger, first, first + count, max_bytes)
        assert taken == [kept[ledger, first + number] for number in range(len(taken))]
        assert len(taken) <= 1 or sum(map(len, taken)) <= max_bytes
        assert bool(taken) == ((ledger, first) in kept)


def test_a_slabs_number_of_entries_is_limited() -> None:
    writer = SlabWriter(memoryview(bytearray(slab_bytes(10))))
    assert all(writer.add(stored(1, entry, b"")) for entry in range(MAX_ENTRIES))
    assert not writer.add(stored(1, MAX_ENTRIES, b""))
    (run,) = writer.finish()
    assert run.end == MAX_ENTRIES


def test_half_of_a_slab_is_half_of_its_bytes() -> None:
    memory = memoryview(bytearray(slab_bytes(1000)))
    writer = SlabWriter(memory)
    for entry, size in enumerate((500, 100, 100, 100, 100)):
        assert writer.add(stored(1, entry, bytes(size)))
    slab = Slab(memory, writer.finish())
    assert [slab.is_past_half(1, entry) for entry in range(6)] == [False, True, True, True, True, False]

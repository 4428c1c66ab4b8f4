from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.broker.reading.cache import ENTRY_OVERHEAD_BYTES, EntryCache
from pulsar_on_spark.model.ids import EntryId, LedgerId


def put(cache: EntryCache, ledger: int, entry: int, data: bytes) -> None:
    cache.add(LedgerId(ledger), EntryId(entry), [data])


def test_the_oldest_entries_go_first() -> None:
    cache = EntryCache(2 * (100 + ENTRY_OVERHEAD_BYTES))
    for entry in range(3):
        put(cache, 1, entry, bytes([entry]) * 100)
    assert cache.get(LedgerId(1), EntryId(0)) is None
    assert cache.get(LedgerId(1), EntryId(1)) == b"\1" * 100
    assert cache.get(LedgerId(1), EntryId(2)) == b"\2" * 100


def test_an_entry_above_the_limit_is_not_kept_and_evicts_all_others() -> None:
    cache = EntryCache(1_000)
    put(cache, 1, 0, b"small")
    put(cache, 1, 1, bytes(2_000))
    assert len(cache) == 0
    assert cache.size_bytes == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 400))), st.integers(0, 3_000))
def test_a_cache_holds_the_newest_entries_that_fit(puts: list[tuple[int, int, int]], max_bytes: int) -> None:
    cache = EntryCache(max_bytes)
    model: dict[tuple[int, int], bytes] = {}
    for ledger, entry, size in puts:
        put(cache, ledger, entry, bytes(size))
        model.setdefault((ledger, entry), bytes(size))
        while sum(len(data) + ENTRY_OVERHEAD_BYTES for data in model.values()) > max_bytes:
            del model[next(iter(model))]
        assert cache.size_bytes <= max_bytes
    assert len(cache) == len(model)
    for (ledger, entry), data in model.items():
        assert cache.get(LedgerId(ledger), EntryId(entry)) == data

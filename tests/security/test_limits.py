"""The source of an address, and the failed authentications of each source. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.security.limits import MAX_SOURCES, WINDOW_S, FailureCounts, source_of

PREFIX = 64
MAPPED = 0xFFFF << 32
"""The prefix of `::ffff:a.b.c.d`."""
words = st.integers(0, 2**PREFIX - 1)


@given(words, words, words)
def test_addresses_of_one_ipv6_prefix_are_one_source(prefix: int, one: int, other: int) -> None:
    found = {source_of(str(IPv6Address(prefix << PREFIX | low))) for low in (one, other)}
    is_mapped = prefix == 0 and any(low >> 32 == 0xFFFF for low in (one, other))
    assert len(found) == 1 or is_mapped


@given(words, words, words, words)
def test_addresses_of_two_ipv6_prefixes_are_two_sources(prefix: int, other: int, one: int, two: int) -> None:
    found = {source_of(str(IPv6Address(first << PREFIX | low))) for first, low in ((prefix, one), (other, two))}
    assert len(found) == 2 or prefix == other


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_a_source_however_it_is_written(address: IPv4Address) -> None:
    mapped = IPv6Address(MAPPED | int(address))
    assert source_of(str(address)) == source_of(str(mapped)) == source_of(f"::ffff:{address}") == str(address)


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("?", "?"),
        ("", ""),
        ("10.0.0.7.example", "10.0.0.7.example"),
    ],
)
def test_a_source_by_example(host: str, source: str) -> None:
    assert source_of(host) == source


def test_failures_count_by_source_and_minute() -> None:
    counts = FailureCounts()
    assert [counts.note("a", float(second)) for second in range(3)] == [1, 2, 3]
    assert counts.note("b", 3.0) == 1
    assert counts.note("a", WINDOW_S) == 1
    assert counts.note("a", 2 * WINDOW_S - 0.1) == 2


def test_sources_are_bounded_and_the_oldest_is_forgotten() -> None:
    counts = FailureCounts()
    counts.note("first", 0.0)
    counts.note("second", 0.0)
    for number in range(MAX_SOURCES - 1):
        counts.note(f"10.{number}", 1.0)
    assert counts.note("second", 1.0) == 2
    assert counts.note("first", 1.0) == 1

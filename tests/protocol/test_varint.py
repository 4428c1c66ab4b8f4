"""Numbers of base 128, as protobuf writes them."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_on_spark.protocol.commands import CommandFlow, CommandReachedEndOfTopic
from pulsar_on_spark.protocol.varint import varint, varints


@given(st.integers(0, 2**64 - 1) | st.integers(0, 2**15))
@example(2**14 - 1)
@example(2**14)
@example(2**28 - 1)
@example(2**28)
def test_the_bytes_are_protobufs(number: int) -> None:
    assert varint(number) == CommandReachedEndOfTopic(consumer_id=number).SerializeToString()[1:]


@pytest.mark.parametrize("number", [-1, -2, -(2**63)])
def test_a_negative_number_is_its_64_bits(number: int) -> None:
    assert varint(number) == varint(number + 2**64)


def test_every_small_number() -> None:
    for number in range(2**15):
        assert varint(number) == CommandFlow(consumer_id=0, messagePermits=number).SerializeToString()[3:]


@given(st.integers(-3, 2**64 - 1) | st.integers(0, 2**15), st.integers(1, 20_000), st.integers(0, 40))
def test_following_numbers_are_encoded_as_single_ones(first: int, step: int, count: int) -> None:
    numbers = range(first, first + count * step, step)
    assert list(islice(varints(first, step), count)) == [varint(number) for number in numbers]

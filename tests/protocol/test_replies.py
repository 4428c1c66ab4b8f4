"""The replies that are made by hand are those that protobuf makes; Pulsar's own bytes are in test_golden_commands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandConsumerStatsResponse,
    CommandMessage,
    CommandSendReceipt,
    MessageIdData,
)
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.protocol.replies import Receipts, consumer_stats_response, message_head, send_receipts

MASK = 2**64 - 1

unsigned = st.integers(0, MASK) | st.integers(0, 2**15)
ids = st.integers(-1, 2**63 - 1) | st.integers(-1, 2**15)
words = st.integers(-(2**63), 2**63 - 1) | st.integers(0, MASK)


def _signed(word: int) -> int:
    word &= MASK
    return word - 2**64 if word >= 2**63 else word


receipts = st.builds(Receipts, unsigned, st.integers(1, 1_000), unsigned, ids, ids, st.integers(1, 300))


@given(unsigned, st.lists(receipts, max_size=8))
def test_receipts_are_protobufs(producer_id: int, runs: list[Receipts]) -> None:
    expected = b""
    for sequence_id, _, highest, ledger, entry, _ in (one for run in runs for one in run.singles()):
        receipt = CommandSendReceipt(
            producer_id=producer_id,
            sequence_id=sequence_id & MASK,
            message_id=MessageIdData(ledgerId=ledger & MASK, entryId=entry & MASK),
            highest_sequence_id=highest,
        )
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        expected += frame_of(command.SerializeToString())
    assert send_receipts(producer_id, runs) == expected


@given(
    unsigned,
    ids,
    ids,
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**32 - 1) | st.just(0),
    st.lists(words, max_size=17),
    st.none() | unsigned,
    st.integers(0, 2**23),
)
def test_heads_of_messages_are_protobufs(
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery_count: int,
    ack_set: list[int],
    consumer_epoch: int | None,
    entry_bytes: int,
) -> None:
    message_id = MessageIdData(
        ledgerId=ledger & MASK, entryId=entry & MASK, partition=None if partition < 0 else partition
    )
    message = CommandMessage(
        consumer_id=consumer_id,
        message_id=message_id,
        redelivery_count=redelivery_count or None,
        ack_set=[_signed(word) for word in ack_set],
        consumer_epoch=consumer_epoch,
    )
    command = BaseCommand(type=BaseCommand.MESSAGE, message=message)
    head = message_head(consumer_id, ledger, entry, partition, redelivery_count, ack_set, consumer_epoch, entry_bytes)
    assert head == frame_of(command.SerializeToString(), entry_bytes)


def test_consumer_stats_are_sent_unchanged() -> None:
    stats = CommandConsumerStatsResponse(request_id=1, consumerName="me", msgBacklog=7)
    command = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=stats)
    assert consumer_stats_response(stats) == frame_of(command.SerializeToString())

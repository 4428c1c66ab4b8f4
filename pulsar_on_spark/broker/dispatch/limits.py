"""The limits of dispatching; names and defaults are Pulsar's, in snake case, where Pulsar has the setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """The limits of a dispatcher's reads and memory."""

    dispatcher_max_read_batch_size: int = 100
    """Maximum number of entries of one read."""
    dispatcher_max_read_size_bytes: int = 5 * 1024 * 1024
    """Maximum number of bytes of one read; a larger entry is read alone."""
    dispatcher_max_round_robin_batch_size: int = 20
    """Messages that one consumer of a Shared subscription gets before the next consumer's turn."""
    max_unacked_messages_per_consumer: int = 50_000
    """Unacknowledged messages that block a Shared or Key_Shared consumer until half are acknowledged; 0: no limit."""
    max_unacked_messages_per_subscription: int = 200_000
    """The same for all consumers together; 0: no limit. With the look-ahead, it limits a subscription's memory to 40 MB
    if every message is an entry."""
    key_shared_look_ahead_per_consumer: int = 2_000
    """Entries per consumer that may wait for another consumer while new ones are read
    (`keySharedLookAheadMsgInReplayThresholdPerConsumer`)."""
    key_shared_look_ahead_per_subscription: int = 20_000
    """The same for all consumers together (`keySharedLookAheadMsgInReplayThresholdPerSubscription`)."""
    active_consumer_failover_delay_time_millis: int = 1_000
    """Pause of a Failover subscription before another consumer becomes active: late acknowledgements can arrive, and
    consumers that start together cause only one change."""
    delayed_delivery_tick_time_millis: int = 1_000
    """Interval at which delayed entries become due together; none is delivered early."""
    delayed_delivery_enabled: bool = True
    """True to delay messages until their delivery time."""
    auto_skip_non_recoverable_data: bool = False
    """True to skip entries without a readable copy; else the subscription waits until a copy is back."""
    max_delayed_entries: int = 100_000
    """Delayed entries that a subscription indexes, about 15 MB; later ones are found by reading again."""

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
    """Number of messages that one consumer of a Shared subscription gets before the next consumer gets some."""
    max_unacked_messages_per_consumer: int = 50_000
    """Number of unacknowledged messages that block a Shared or Key_Shared consumer until half of them are acknowledged;
    0 for no limit."""
    max_unacked_messages_per_subscription: int = 200_000
    """Number of unacknowledged messages of all consumers that block a Shared or Key_Shared subscription until half of
    them are acknowledged; 0 for no limit. This and the look-ahead limit a subscription's memory to 40 MB if every
    message is an entry."""
    key_shared_look_ahead_per_consumer: int = 2_000
    """Number of entries, for each consumer, that may wait in the replay queue while new entries are read
    (`keySharedLookAheadMsgInReplayThresholdPerConsumer`)."""
    key_shared_look_ahead_per_subscription: int = 20_000
    """Maximum number of entries of a subscription that may wait in the replay queue while new entries are read
    (`keySharedLookAheadMsgInReplayThresholdPerSubscription`)."""
    active_consumer_failover_delay_time_millis: int = 1_000
    """Pause in milliseconds of a Failover subscription before another consumer becomes active: late acknowledgements
    can arrive, and consumers that start together cause only one change."""
    delayed_delivery_tick_time_millis: int = 1_000
    """Minimum milliseconds between two deliveries of delayed entries that are due; no entry is delivered early."""
    delayed_delivery_enabled: bool = True
    """True to delay messages until their delivery time."""
    auto_skip_non_recoverable_data: bool = False
    """True to skip entries without a readable copy; else the subscription waits until a copy is back."""
    max_delayed_entries: int = 100_000
    """Number of delayed entries that a subscription indexes, in about 15 MB of memory. Entries that are due later are
    found by reading them again."""

"""The limits of dispatching; names and defaults are Pulsar's, in snake case, where Pulsar has the setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """What bounds a dispatcher's reads and memory."""

    dispatcher_max_read_batch_size: int = 100
    """Most entries of one read."""
    dispatcher_max_read_size_bytes: int = 5 * 1024 * 1024
    """Most bytes of one read; a larger entry is read alone."""
    dispatcher_max_round_robin_batch_size: int = 20
    """Messages that one consumer of a Shared subscription gets before it is the next one's turn."""
    max_unacked_messages_per_consumer: int = 50_000
    """A Shared or Key_Shared consumer gets nothing from here on until half of them are acknowledged; 0: no limit."""
    max_unacked_messages_per_subscription: int = 200_000
    """The same over all consumers; 0: no limit. Bounds, with the look-ahead, what is remembered: 40 MB where every
    message is an entry."""
    key_shared_look_ahead_per_consumer: int = 2_000
    """Entries that may wait for another consumer while new ones are read, for each consumer
    (`keySharedLookAheadMsgInReplayThresholdPerConsumer`)."""
    key_shared_look_ahead_per_subscription: int = 20_000
    """The same for all consumers together (`keySharedLookAheadMsgInReplayThresholdPerSubscription`)."""
    active_consumer_failover_delay_time_millis: int = 1_000
    """How long a Failover subscription rests before another consumer is the active one: acknowledgements on their way
    arrive, and consumers that start together make one change."""
    delayed_delivery_tick_time_millis: int = 1_000
    """Delayed entries become due together, at most once in this time; never early."""
    delayed_delivery_enabled: bool = True
    """Whether times of delivery are heeded."""
    auto_skip_non_recoverable_data: bool = False
    """Whether entries that no copy gives are passed over; else their subscription waits until they are back."""
    max_delayed_entries: int = 100_000
    """Delayed entries that a subscription remembers, about 15 MB; what is beyond is found again by reading."""

"""The identity of a streaming query: its consumer name, and its subscription.

The first offset that Spark passes identifies a query: the offset in its checkpoint, or the initial offset of a new
query. Spark does not keep the initial offset. For a replay of batch 0, Spark asks for another initial offset but does
not use it, because it replays the batch by its end offset, which names the same consumer and subscription.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The consumer and subscription of a streaming query, which stay the same as long as its checkpoint exists.

    Attributes:
        consumer: The consumer id.
        subscription: The subscription; None for a query without one.
    """

    consumer: str
    subscription: str | None

    @classmethod
    def new(cls, options: ReadOptions) -> StreamIdentity:
        """Return the identity of a new query, with a random consumer name unless the options give one."""
        consumer = options.consumer_name or uuid.uuid4().hex
        if options.subscription_prefix is not None:
            return cls(consumer, f"{options.subscription_prefix}-{consumer}")
        return cls(consumer, options.subscription)

    @classmethod
    def of_offset(cls, offset: StreamOffset, options: ReadOptions) -> StreamIdentity:
        """Return the identity in an offset of the checkpoint, with the consumer of option `consumerName` if given.

        If the offset has no subscription, the options may name one, which then begins at the offset's positions.

        Raises:
            InvalidArgumentError: the offset has a subscription, and the options name another one or none.
        """
        prefix, named = options.subscription_prefix, offset.subscription
        wanted = options.subscription
        if prefix is not None:
            is_own = named is not None and named.startswith(f"{prefix}-")
            wanted = named if is_own else f"{prefix}-{offset.consumer}"
        if (named is not None and named != wanted) or (wanted is None and offset.is_subscribed):
            raise InvalidArgumentError(_refusal(named, prefix, wanted))
        return cls(options.consumer_name or offset.consumer, wanted)

    def sign(self, offset: StreamOffset) -> StreamOffset:
        """Return the offset with the consumer and the subscription of this identity."""
        return StreamOffset(self.consumer, offset.topics, self.subscription)


def _refusal(named: str | None, prefix: str | None, wanted: str | None) -> str:
    checkpointed = "a subscription" if named is None else f"subscription {named!r}"
    requested = "none"
    if prefix is not None:
        requested = f"a subscription with the prefix {prefix!r}"
    elif wanted is not None:
        requested = repr(wanted)
    remedy = "set option subscription to its name" if named is None else f"set option subscription to {named!r}"
    return (
        f"The checkpoint is of a query under {checkpointed}, and this query asks for {requested}: {remedy}, or start "
        "with a new checkpointLocation."
    )

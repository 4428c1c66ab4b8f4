"""Dispatching, without IO: the choice of the consumer that gets each entry of a subscription, and of the time.

A `Dispatcher` shares a `Cursor` (`topic.managed_ledger.cursor`) with the cursor's owner, which persists the cursor.
`subscriptions/subscription.py` calls the dispatcher and does the IO: `wanted()` returns the entries to read now,
`offer()` assigns read entries to consumers, and the other methods are the consumers' commands. Start at
`dispatcher.py`; `single_active.py` is Exclusive and Failover, `pool.py` the common base of `shared.py` and
`key_shared.py`. The package may import `topic.managed_ledger.cursor` and `model`.
"""

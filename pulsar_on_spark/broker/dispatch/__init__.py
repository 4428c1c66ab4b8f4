"""Dispatching: pure cores that decide which consumer of a subscription gets which entry, and when.

A `Dispatcher` shares a `topic.cursor.Cursor` with whoever persists it. Its shell (`subscriptions/subscription.py`)
drives it: `wanted()` says what to read now, `offer()` takes what was read and says what goes to whom, the rest are the
consumers' commands. Start at `dispatcher.py`; `single_active.py` is Exclusive and Failover, `pool.py` what `shared.py`
and `key_shared.py` have in common. It may import `topic.managed_ledger.cursor` and `model`.
"""

"""Cursors of the broker's subscriptions: acquired from and released to Spark, durable in the journal and in Delta.

Start reading at `keeper.py`, which does the IO. `decisions.py` decides on ownership and on what to commit; `claims.py`
collects the facts for a decision; `open_cursor.py` is one cursor with the callers that wait until it is durable.
"""

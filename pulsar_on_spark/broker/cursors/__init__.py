"""Cursors of the broker's subscriptions: taken from and given back to Spark, durable through the journal, in Delta.

`keeper.py` is the shell and the place to start; `decisions.py` decides which owner may have a subscription, and what is
committed for it; `claims.py` gathers the facts of a decision; `open_cursor.py` is one cursor and its waiting clients.
"""

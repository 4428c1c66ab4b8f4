"""Cursors of the broker's subscriptions: taken from and given back to Spark, durable through the journal, in Delta.

`keeper.py` is the shell and the place to start; `decisions.py` says who may have a subscription, and what is committed
for it; `claims.py` finds out what a decision needs to know; `open_cursor.py` is one cursor and who waits for it.
"""

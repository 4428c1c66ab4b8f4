"""Retention: the entries to trim, the reasons why others are kept, and the expiry of subscriptions.

Decisions are pure functions of a metadata view, cursors and a clock's value: `holders.py` lists the readers that may
need entries, `retention.py` the segments to trim. Only `trim.py` and `expiry.py` commit. Both `maintain` and brokers
call them; a broker's `broker.background.lifecycle` also does the parts that need clients or open cursors.
"""

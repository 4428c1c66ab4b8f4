"""Retention: the entries to trim, the reasons why others are kept, and the expiry of subscriptions.

Decisions are pure functions of a metadata view, cursors and a time. `holders.py` lists the readers that may need
entries, `retention.py` the segments to trim. Only `trim.py` and `expiry.py` commit. Both `maintain` and brokers call
these two. A broker's `broker.background.lifecycle` also does the work that needs connected clients or open cursors.
"""

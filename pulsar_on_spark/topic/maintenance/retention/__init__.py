"""Retention: what is trimmed and why the rest is kept, and which subscriptions expire.

Decisions are pure functions of a metadata view, cursors and a clock's value: `holders.py` lists the readers that may
need entries, `retention.py` the segments to trim. Only `trim.py` and `expiry.py` commit: `maintain` calls them, and so
does a broker, whose `broker.background.lifecycle` also does the parts that need clients or cursors.
"""

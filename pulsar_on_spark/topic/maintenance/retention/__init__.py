"""Retention: what is trimmed and why the rest is kept, and which subscriptions expire.

Decisions are pure functions of a metadata view, cursors and a clock's value: `holders.py` says who may still need what,
`retention.py` what may go. Only `trim.py` and `expiry.py` commit: `maintain` calls them, and so does a broker, whose
`broker.background.lifecycle` also does what takes clients or cursors.
"""

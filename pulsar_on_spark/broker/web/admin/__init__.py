"""Pulsar's admin REST v2: one module per subject, each with a `router`; `routers.py` puts them in order.

Handlers translate between HTTP and functions of the broker and of `topic`; the command line calls the same functions,
or these routes. Paths of Pulsar that this project does not support answer 501 and the reason (`not_there.py`).
"""

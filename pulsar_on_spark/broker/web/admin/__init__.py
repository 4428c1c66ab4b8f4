"""Pulsar's admin REST v2: one module a subject, each with a `router`; `routers.py` puts them in order.

Handlers translate between HTTP and functions of the broker and of `topic`; the command line calls the same functions,
or these routes. What a path would do and this project does not is answered with 501 and the reason (`not_there.py`).
"""

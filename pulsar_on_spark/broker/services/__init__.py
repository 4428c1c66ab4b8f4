"""The broker's parts together: what handlers and HTTP work with, its health, settings at run time, its metrics.

Metrics: `gather.py` takes numbers off the loaded topics, a few topics in a turn of the event loop; `topic_families.py`
and `store_families.py` put them into Prometheus' families, in a thread. `vitals.py` measures the broker itself.
"""

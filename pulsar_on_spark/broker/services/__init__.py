"""The broker's parts in one place for handlers and HTTP; its health, settings at run time, and metrics.

Metrics: `gather.py` reads the numbers of the loaded topics, a few topics in each turn of the event loop;
`topic_families.py` and `store_families.py` turn them into Prometheus' families, in a thread.
`broker_health.py` measures the broker itself.
"""

"""Numbers for Prometheus: under Pulsar's names where they mean the same, under `pulsarpy_` where they are this store's.

`gather.py` takes them off the loaded topics, a few topics in a turn of the event loop; `topic_families.py` and
`store_families.py` put them into families, in a thread. `vitals.py` measures the broker itself; `stored.py` looks at
metadata and disks now and then, so that a scrape never waits for one.
"""

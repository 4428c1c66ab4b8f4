"""Statistics of topics for operators: counters, rates and exact backlogs, under the names of Pulsar's stats.

`rates.py` turns counters into rates, without IO; `meters.py` samples the loaded topics; `backlogs.py` counts the
backlogs of cursors, including unsealed entries in journals; `topic_stats.py` and `internal_stats.py` combine counters
and backlogs into the models of `models.py`. `stored.py` reads metadata and disks periodically, so that a scrape of
metrics never waits for them.
"""

"""Statistics of topics for operators: counters, rates and exact backlogs, under the names of Pulsar's stats.

`rates.py` is a pure core that turns counters into rates; `meters.py` samples the loaded topics; `backlogs.py` counts
the backlogs of cursors, journals included; `topic_stats.py` and `internal_stats.py` combine them into the models of
`models.py`. `stored.py` reads metadata and disks from time to time, so that a scrape of metrics never waits for them.
"""

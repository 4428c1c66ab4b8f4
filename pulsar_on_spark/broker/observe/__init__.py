"""Statistics of topics for operators: counters, rates and exact backlogs, under the names of Pulsar's stats.

`rates.py` is a pure core that turns counters into rates; `meters.py` samples the loaded topics; `sight.py` counts
backlogs, journals included; `topic_stats.py` and `internal_stats.py` combine them in `models.py`.
`stored.py` looks at metadata and disks now and then, so that a scrape of metrics never waits for one.
"""

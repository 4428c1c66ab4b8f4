"""Maintenance of a root: retention, merging, garbage collection, repair, compaction, backup, status, usage.

`maintain.py` is one pass over all of them.
"""

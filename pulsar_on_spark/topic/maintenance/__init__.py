"""Maintenance of a root: retention, merging, garbage collection, repair, compaction, backup, status, usage.

`maintain.py` runs one pass of the steps that a root needs from time to time.
"""

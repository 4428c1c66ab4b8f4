"""What keeps a root small and whole: retention, merging, garbage collection, repair, compaction, backup, status, usage.

`maintain.py` is one pass over all of them.
"""

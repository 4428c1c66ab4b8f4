"""History: for each topic that wants one, a Delta table with a row for each message; never the only copy for clients.

Start reading at `plan.py`, which decides what a build does, and `build.py`, which does it. `table.py` is the handle on
a table, `places.py` says where it is, `columns.py` has its columns, and `boundary.py` says where a reader passes from
the table to the topic. `upkeep.py` is the pass that housekeeping runs.
"""

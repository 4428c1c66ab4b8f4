"""History tables: Delta tables, each with one row for each message of a topic, beside the topic's ledgers.

Pulsar's clients never read these tables. Start reading at `plan.py`, which decides the steps of a build, and
`build.py`, which takes them. `table.py` reads and writes a table, `places.py` names it, `columns.py` has its columns,
and `boundary.py` the position at which a reader passes from the table to the topic. `upkeep.py` is the housekeeping
pass.
"""

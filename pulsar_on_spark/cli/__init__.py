"""The command line `pulsarpy`: roots, topics, subscriptions, status and maintenance.

It may import every package below and holds no rules of its own: each command calls the Python API of a root and shows
what comes back, as a table or as JSON. Start reading at `app.py`; `output.py` has tables, progress and errors.
"""

from pulsar_on_spark.cli.app import main

__all__ = ["main"]

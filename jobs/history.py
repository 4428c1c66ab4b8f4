"""`spark-submit jobs/history.py TOPIC ROOT [--skip-lost]`: see `pulsar_on_spark.jobs.history`."""

import typer

from pulsar_on_spark.jobs.history import main

if __name__ == "__main__":
    typer.run(main)

"""`spark-submit jobs/audit.py ROOT [--repair]`: see `pulsar_on_spark.jobs.audit`."""

import typer

from pulsar_on_spark.jobs.audit import main

if __name__ == "__main__":
    typer.run(main)

"""`make demo`: replay the flights of 2013 through a topic. What it does is in `pulsar_on_spark.jobs.flights`."""

import typer

from pulsar_on_spark.jobs.flights import main

if __name__ == "__main__":
    typer.run(main)

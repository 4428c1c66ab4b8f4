"""The command line `pulsarpy`: roots, topics, subscriptions, status and maintenance.

This package may import every other package. Each command only calls the Python API of a root, or a broker's admin API,
and prints the result as a table or as JSON. Start reading at `app.py`; `output.py` has tables, progress and errors.
"""

from __future__ import annotations

import sys

from pulsar_on_spark.cli.extras import missing

INTERRUPTED = 128 + 2
"""The exit code of a program that was ended by Ctrl-C, as in shells."""


def main() -> None:
    """Run the program.

    A process that a broker spawns imports this package again, because the package is the main module of the broker's
    process. Such a process must not import the command line, the broker or the web server, which take tens of MiB each.
    So this function imports the command line.
    """
    try:
        from pulsar_on_spark.cli.app import main as run

        run()
    except KeyboardInterrupt:  # during the imports
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__package__.partition(".")[0]):
            raise
        sys.exit(f"pulsarpy: {missing(error.name, 'The command line', 'cli')}")


__all__ = ["INTERRUPTED", "main"]

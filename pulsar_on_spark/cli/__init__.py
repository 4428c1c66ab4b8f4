"""The command line `pulsarpy`: roots, topics, subscriptions, status and maintenance.

It may import every package below and contains no rules of its own: each command calls the Python API of a root and
prints the result as a table or as JSON. Start reading at `app.py`; `output.py` has tables, progress and errors.
"""

from __future__ import annotations

import sys

from pulsar_on_spark.cli.extras import missing

INTERRUPTED = 128 + 2
"""The exit code of a program that Ctrl-C ended, as in shells."""


def main() -> None:
    """Run the program.

    Processes that a broker spawns import this package again as their parent's main module. They must not import the
    command line, the broker and the web server, each of which takes tens of MiB.
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

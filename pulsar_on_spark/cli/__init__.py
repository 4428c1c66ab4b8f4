"""The command line `pulsarpy`: roots, topics, subscriptions, status and maintenance.

It may import every other package, and contains no rules of its own: each command calls the Python API of a root, or a
broker's admin API, and prints the result as a table or as JSON. Start reading at `app.py`; `output.py` has tables,
progress and errors.
"""

from __future__ import annotations

import sys

from pulsar_on_spark.cli.extras import missing

INTERRUPTED = 128 + 2
"""The exit code of a program that Ctrl-C ended, as in shells."""


def main() -> None:
    """Run the program.

    A process that a broker spawns imports this package again, because it is the main module of its parent. It must not
    import the command line, the broker and the web server, each of which takes tens of MiB.
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

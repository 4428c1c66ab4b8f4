"""A seeded simulator of the journal's protocol: the cores of `ledger.journal` with paths that fail.

It imports the cores and `model`; a test or `python -m tests.simulators.journal` runs it. Start reading at
`run`, then `oracle` for what is checked.
"""

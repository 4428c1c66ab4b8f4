"""The broker beside Apache Pulsar, with official clients: `python -m bench.broker [--peer pulsar://host:port]`.

`measures.py` has one function for each figure; `targets.py` what is measured, ours or a peer; `load/` is a Go program
that loads either, made at the start of a run.
"""

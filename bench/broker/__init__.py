"""The broker beside Apache Pulsar, with official clients: `python -m bench.broker [--peer pulsar://host:port]`.

`measures.py` has one function for each figure; `targets.py` the brokers that are measured, ours or a peer; `load/` is a
Go program that loads either, built at the start of a run.
"""

"""The broker beside Apache Pulsar, with official clients: `python -m bench.broker [--peer pulsar://host:port]`.

`measures.py` has one function for one or a few figures; `targets.py` has the measured brokers, ours or a peer; `load/`
is a Go program that loads either, built at the start of a run.
"""

"""The broker beside Apache Pulsar, with official clients: `python -m bench.broker [--peer pulsar://host:port]`.

`measures.py` has one function for one or a few figures; `targets.py` has the measured brokers, which are ours and a
peer; `load/` is a Go program that puts load on a broker, built at the start of a run.
"""

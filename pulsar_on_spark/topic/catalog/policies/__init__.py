"""Policies: Pulsar's rules as set on namespaces and topics, and the rules in force for a topic.

`policies.py` lists the policies with their values and the modules that enforce them; `effective.py` combines those of
topic, namespace and broker; `change.py` commits them. Only the last one does IO.
"""

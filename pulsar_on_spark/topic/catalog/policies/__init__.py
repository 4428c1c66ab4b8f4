"""Policies: Pulsar's rules as set on namespaces and topics, and the rules in force for a topic.

`policies.py` lists the policies with their values and the modules that enforce them. `effective.py` combines the
policies of topic, namespace and broker. `change.py` commits changed policies, and is the only module that does IO.
"""

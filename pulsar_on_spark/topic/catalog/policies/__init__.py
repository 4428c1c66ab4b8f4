"""Policies: what a namespace or a topic sets of Pulsar's rules, and what holds for a topic in the end.

`policies.py` says which there are, by whom each is enforced and what values it takes; `effective.py` puts topic,
namespace and broker together; `change.py` commits. Only the last one does IO.
"""

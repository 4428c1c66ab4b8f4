"""The schema registry of a root: versions of what a topic's values are made of, and which new ones may follow.

One registry for both faces: Spark's columns come from it, Pulsar's clients register in it. `schema.py` says what a
schema is, `avro.py` what can be read as what, `compatibility.py` applies Pulsar's strategies, `registry.py` commits.
Only the last one does IO.
"""

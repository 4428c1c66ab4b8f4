"""Schemas of topics' values: their types, which can be read as which, and Pulsar's compatibility strategies.

`schema.py` defines a schema, `avro.py` which one can read the values of which, `compatibility.py` applies Pulsar's
strategies. Nothing here does IO: `catalog.registry` commits.
"""

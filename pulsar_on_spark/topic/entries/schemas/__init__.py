"""Schemas of topics' values: their types, Avro's rules for reading one schema as another, and Pulsar's strategies.

`schema.py` defines a schema, `avro.py` checks if one schema can read another's values, and `compatibility.py` applies
Pulsar's compatibility strategies. These modules do no IO; `catalog.registry` stores the schemas.
"""

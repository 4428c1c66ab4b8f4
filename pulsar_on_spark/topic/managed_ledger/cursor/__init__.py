"""A broker subscription's cursor: what is acknowledged of a topic, its records, and its way between the faces."""

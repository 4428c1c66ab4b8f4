"""Several brokers of one root: their registration, the bundles that each of them owns, and takeover.

`ownership` says which broker serves a topic, and assigns bundles without an owner; `handover` gives bundles up;
`takeover` recovers the journals of dead brokers, which frees their bundles. Brokers agree by the metadata alone.
"""

"""Several brokers of one root: their registration, the bundles that each of them owns, and takeover.

`ownership` finds the broker that serves a topic, and assigns bundles without an owner; `handover` gives bundles up;
`takeover` recovers the journals of dead brokers, which frees their bundles. Brokers agree through the metadata alone.
"""

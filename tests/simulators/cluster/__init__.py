"""A seeded simulator of several brokers over one root: the real parts that decide who serves which bundle.

Each broker has an event loop of its own over a virtual clock, and in it the real registration, ownership, hand-over,
takeover and table of topics. Simulated are the metadata store, leases, locks, journals, and what clients do. Start
reading at `run`, then `oracle` for what is checked.
"""

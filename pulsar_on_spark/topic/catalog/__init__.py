"""The catalog of a root: the open root, tenants, namespaces and topics, policies, the schema registry, leases.

Start reading at `root_handle.py`, then `catalog.py`.
"""

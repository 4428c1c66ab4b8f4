"""Leases: the bytes by which holders show that they are alive, in a folder or on an object store.

Start reading at `contract`. The content of leases is defined in `topic.catalog.leases`.
"""

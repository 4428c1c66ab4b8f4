"""Periodic background work of a broker: expiry, quotas, deletion, repair."""

"""Security: the identity of clients."""

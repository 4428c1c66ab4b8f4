"""Clients' connections: bytes in, commands to their handlers, answers out; and when nothing is read."""

"""Clients' connections: parse bytes, dispatch commands to handlers, write responses, apply back-pressure."""

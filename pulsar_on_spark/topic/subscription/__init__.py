"""Subscriptions: who reads which slots from where, the consumers that do, and the offsets of their queries."""

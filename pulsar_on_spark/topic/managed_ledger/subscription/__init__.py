"""Subscriptions: who reads which slots from where, and the offsets of their queries."""

"""Subscriptions: owners and positions of slots, and the offsets of queries."""

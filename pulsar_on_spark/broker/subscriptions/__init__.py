"""Subscriptions of loaded topics and their consumers; who gets which entry is decided in `dispatch`."""

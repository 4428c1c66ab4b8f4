"""Subscriptions of loaded topics and their consumers; `dispatch` decides which consumer gets which entry."""

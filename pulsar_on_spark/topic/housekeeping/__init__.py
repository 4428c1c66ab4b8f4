"""What keeps a root small: merging, garbage collection, expiry, and one pass over all of them."""

"""Plain frozen data: names, ids, positions, hashes of keys, quorums and the tree of errors.

Nothing here does IO but `clock`, which tells the time. It imports nothing from the other packages, and of the libraries
only numpy and Arrow (in `hashing`). Start with `ids`, then `names`.
"""

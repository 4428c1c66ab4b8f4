"""A simulation of the metadata's log: real handles in threads that run one at a time, over a store with late requests.

Every request of a handle is a step, and the seed decides which process makes the next one. A process may sleep while
others commit, fold, checkpoint and clean up. A request to create an entry may arrive late, after its sender was told
nothing, or twice.
"""

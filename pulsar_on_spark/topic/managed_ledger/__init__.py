"""A topic's managed ledger: its chain of ledgers, cursors, subscriptions and quotas, and a broker's open ledgers.

incarnation           a broker's journal and open ledgers, and the recovery of dead brokers
sealing               from journals to sealed segments
quotas                backlog quotas and the writes that they refuse
subscription, cursor  owners, positions and acknowledgements
chain                 the segments and journals that hold a topic's entries
"""

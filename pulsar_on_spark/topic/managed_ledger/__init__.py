"""A topic's managed ledger: its chain of ledgers, cursors, subscriptions and quotas, and a broker's open ledgers.

incarnation           a broker's journal and open ledgers, and their recovery when it is dead
sealing               from journals to sealed segments
quotas                backlog quotas and the writes that they refuse
subscription, cursor  who reads what from where, and what is acknowledged
chain                 where a topic's entries are
"""

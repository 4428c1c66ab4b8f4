"""Topics on top of ledgers and metadata, in five floors. Each floor imports only the floors below it.

    maintenance     retention, merging, garbage collection, repair, compaction, backup, status
    data_path       write, read and follow a topic
    managed_ledger  a topic's chain of ledgers, its cursors and subscriptions, a broker's ledgers and their sealing
    catalog         the handle of a root; tenants, topics, policies, the schema registry, leases
    entries         rows to entries and back, values, schema formats

The package imports only `ledger`, `protocol`, `metadata`, `storage`, `security` and `model`, and not Spark. Begin at
`catalog.root_handle`, then `managed_ledger.chain.chain` (the segments with a topic's entries) and `data_path.attach`
(how a write becomes visible).
"""

"""The storage side of a broker incarnation: its lease, journal and ledgers; and the recovery of dead incarnations."""

"""A broker incarnation's storage face: its lease, journal and ledgers; and the recovery of dead incarnations."""

"""A broker incarnation's storage face: its lease, journal and ledgers, and what others do when it is dead."""

"""Reading what is acknowledged in journals and not sealed yet."""

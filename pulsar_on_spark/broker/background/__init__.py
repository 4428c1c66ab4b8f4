"""What a broker does beside its clients now and then: expire, limit, delete, repair."""

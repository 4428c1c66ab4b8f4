"""The topics that a broker has loaded, those that it makes, and what others do to topics."""

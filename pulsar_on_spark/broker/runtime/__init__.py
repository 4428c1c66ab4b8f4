"""What every part of a broker works with: settings, views and commits of metadata, journals, limits, processes."""

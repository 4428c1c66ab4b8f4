"""Services that every part of a broker uses: settings, views and commits of metadata, journals, limits, processes."""

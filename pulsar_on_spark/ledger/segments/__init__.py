"""Sealed Arrow segment files: encode once, write copies in parallel, check before parsing, restore copies.

Start reading at `segment_format`, then `segment_writer` and `segment_reader`.
"""

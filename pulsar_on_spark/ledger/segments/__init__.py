"""Sealed Arrow segment files: encoded once, written as parallel copies, checked before parsing, restored by repair.

Start reading at `segment_format`, then `segment_writer` and `segment_reader`.
"""

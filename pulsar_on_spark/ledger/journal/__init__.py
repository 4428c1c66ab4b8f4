"""The journal: BookKeeper's protocol as pure state machines, and the bytes of its frames and files.

One incarnation of a broker has one log of numbered frames, kept in files on several storage paths. The state machines
do no IO, and depend only on `model` and `storage.placement`; `frames`, `files` and the `codec_` modules handle the
bytes, with numpy, Arrow and `storage.files`. Start reading at `log`, or at `frames` for the format.
"""

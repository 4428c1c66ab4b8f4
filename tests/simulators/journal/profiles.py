"""The kinds of runs: how large everything is, and how often what goes wrong."""

from __future__ import annotations

from dataclasses import replace

from tests.simulators.journal.world import Profile

NORMAL = {
    "add": 40,
    "idle": 6,
    "offer": 4,
    "withdraw": 2,
    "time_out_writer": 3,
    "close": 1,
    "pause_writer": 2,
    "wake_writer": 3,
    "kill_writer": 1,
    "recover": 3,
    "time_out_recovery": 4,
    "pause_recovery": 2,
    "wake_recovery": 3,
    "kill_recovery": 1,
    "housekeep": 8,
    "pause_housekeeper": 2,
    "wake_housekeeper": 3,
    "snapshot": 2,
    "read": 6,
    "new_reader": 1,
    "pause_reader": 2,
    "wake_reader": 3,
    "away": 2,
    "back": 4,
    "crash": 1,
    "empty": 1,
    "damage": 1,
    "power_cut": 1,
    "rob": 0,
}

_HEALTHY = (("away", 0), ("back", 0), ("crash", 0), ("empty", 0), ("damage", 0), ("power_cut", 0))
"""A profile in which no path is ever away: a reader has no excuse for a hole."""

_UNDAMAGED = (("empty", 0), ("damage", 0))

_BAD_DISKS = (("crash", 5), ("empty", 3), ("damage", 4), ("power_cut", 3), ("away", 5))

PROFILES = (
    Profile("mixed"),
    Profile("recovery", weights=(("recover", 12), ("wake_writer", 8), ("pause_writer", 6)), steps=250),
    Profile("rolling", roll_groups=2, weights=(("add", 90), ("time_out_writer", 6)), steps=250),
    Profile("no spares", paths=3, roll_groups=4, weights=(("time_out_writer", 6), ("offer", 8))),
    Profile("two copies", paths=3, write_quorum=2, roll_groups=3),
    Profile("one copy", paths=2, write_quorum=1, ack_quorum=1, roll_groups=3),
    Profile(
        "closing",
        ack_quorum=1,
        act=0.2,
        steps=80,
        weights=(
            ("add", 60),
            ("idle", 60),
            ("close", 40),
            ("recover", 0),
            ("time_out_writer", 0),
            ("housekeep", 0),
            ("read", 0),
            *_HEALTHY,
        ),
    ),
    Profile("one ack of three", ack_quorum=1, roll_groups=4, weights=(("idle", 30), ("close", 6))),
    Profile("disks", loss=0.0, weights=_BAD_DISKS),
    Profile(
        "sealing",
        roll_groups=2,
        loss=0.0,
        weights=(
            ("add", 80),
            ("housekeep", 60),
            ("snapshot", 15),
            ("read", 20),
            ("new_reader", 15),
            ("pause_reader", 20),
            ("wake_reader", 15),
            ("recover", 1),
            *_HEALTHY,
        ),
        steps=700,
        act=0.2,
    ),
    Profile(
        "trimming",
        paths=3,
        roll_groups=1,
        loss=0.0,
        act=0.15,
        steps=400,
        weights=(
            ("add", 80),
            ("housekeep", 60),
            ("snapshot", 15),
            ("read", 20),
            ("new_reader", 40),
            ("pause_reader", 40),
            ("wake_reader", 15),
            ("recover", 2),
            *_HEALTHY,
            ("away", 3),
            ("back", 6),
        ),
    ),
    Profile(
        "consequences",
        paths=2,
        write_quorum=2,
        roll_groups=50,
        loss=0.15,
        act=0.15,
        rename_fails=0.6,
        checks_answers=False,
        steps=100,
        weights=(
            *((name, 0) for name in NORMAL),
            ("add", 30),
            ("recover", 10),
            ("pause_writer", 15),
            ("wake_writer", 3),
        ),
    ),
    Profile("consequences on disks", loss=0.0, io_error=0.02, checks_answers=False, weights=_BAD_DISKS),
    Profile("lossy", loss=0.1, duplicate=0.1, unknown=0.3, weights=(("time_out_writer", 9), ("time_out_recovery", 9))),
)

_ONE = Profile("", paths=1, stores=1, write_quorum=1, ack_quorum=1, roll_groups=4, loss=0.05, duplicate=0.1)
"""The usual quorum of a root on an object store."""

_COLLECTED = (("add", 60), ("housekeep", 80), ("snapshot", 15), *_HEALTHY)
"""Weights with which a log is soon sealed and trimmed."""

OBJECT_PROFILES = (
    replace(_ONE, name="objects 1/1/1"),
    Profile("objects 3/3/2", paths=3, stores=3, roll_groups=4, loss=0.05, duplicate=0.1),
    Profile("objects and spares", stores=5, loss=0.05, duplicate=0.1, weights=(("time_out_writer", 6),)),
    Profile("objects and disks", paths=4, stores=2, roll_groups=4, loss=0.03, duplicate=0.1),
    replace(_ONE, name="objects, busy", roll_groups=30, loss=0.15, act=0.3, weights=(("add", 200), ("recover", 8))),
    Profile(
        "objects recovered",
        paths=3,
        stores=3,
        loss=0.05,
        duplicate=0.1,
        rename_fails=0.2,
        weights=(("add", 90), ("recover", 14), ("pause_writer", 8), ("wake_writer", 10), ("pause_recovery", 4)),
        steps=250,
    ),
    replace(
        _ONE,
        name="objects collected",
        roll_groups=3,
        loss=0.03,
        duplicate=0.15,
        weights=(*_COLLECTED, ("pause_writer", 6), ("wake_writer", 0), ("recover", 8), ("pause_recovery", 8)),
        steps=800,
        act=0.2,
    ),
    replace(_ONE, name="objects robbed", roll_groups=20, weights=(("rob", 6), ("kill_writer", 4), *_UNDAMAGED)),
    Profile("objects robbed 3/3/2", paths=3, stores=3, weights=(("rob", 6), *_UNDAMAGED)),
    replace(
        _ONE,
        name="objects, consequences",
        roll_groups=8,
        loss=0.1,
        duplicate=0.15,
        act=0.15,
        rename_fails=0.2,
        checks_answers=False,
        weights=(("add", 90), ("recover", 10), ("pause_writer", 12), ("wake_writer", 6), *_HEALTHY),
    ),
    replace(
        _ONE,
        name="objects collected, consequences",
        roll_groups=3,
        loss=0.03,
        duplicate=0.15,
        checks_answers=False,
        weights=(*_COLLECTED, ("pause_writer", 6), ("wake_writer", 0), ("recover", 8)),
        steps=800,
        act=0.2,
    ),
)
"""The kinds of runs with object stores."""

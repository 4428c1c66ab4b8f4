"""The locks of brokers: one for each id, and what they tell of dead ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_on_spark.broker.runtime.broker_lock import BrokerLock, lock_file
from pulsar_on_spark.model.errors import BrokerRunningError
from pulsar_on_spark.model.ids import IncarnationId

ONE, TWO = IncarnationId("1" * 32), IncarnationId("2" * 32)
DIES = """
import os, sys
from pathlib import Path
from pulsar_on_spark.broker.runtime.broker_lock import BrokerLock
lock = BrokerLock(Path(sys.argv[1]), Path(sys.argv[1], sys.argv[2]))
lock.note(sys.argv[3:], "pulsar://localhost:1")
os._exit(0)
"""


def test_a_second_broker_with_the_same_id_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / lock_file("localhost:8080")
    first = BrokerLock(tmp_path, file)
    first.note([ONE], "pulsar://localhost:6650")
    where = f"process {os.getpid()} on {socket.gethostname()} at pulsar://localhost:6650"
    with pytest.raises(BrokerRunningError, match=f"{tmp_path} is served by another broker already .{where}"):
        BrokerLock(tmp_path, file)
    first.release()
    assert BrokerLock(tmp_path, file).former == [ONE]


def test_another_broker_knows_which_incarnations_are_dead(tmp_path: Path) -> None:
    own, living = BrokerLock(tmp_path, tmp_path / lock_file("a:1")), BrokerLock(tmp_path, tmp_path / lock_file("b:1"))
    living.note([TWO], "pulsar://b")
    dies = lock_file("c:1")
    subprocess.run([sys.executable, "-c", DIES, tmp_path, dies, ONE, TWO], check=True)
    assert [(lock.file.name, lock.dead()) for lock in own.others()] == [(lock_file("b:1"), None), (dies, [ONE, TWO])]


def test_only_the_file_of_a_dead_broker_is_removed(tmp_path: Path) -> None:
    own, file = BrokerLock(tmp_path, tmp_path / lock_file("a:1")), tmp_path / lock_file("b:1")
    again = BrokerLock(tmp_path, file)
    again.note([TWO], "pulsar://b")
    (lock,) = own.others()
    lock.remove([TWO])
    assert file.exists(), "its broker lives"
    again.release()
    lock.remove([ONE])
    assert file.exists(), "another broker has used it since"
    lock.remove([TWO])
    assert own.others() == []
    assert lock.dead() is None
    lock.remove([TWO])


def test_a_lock_that_another_broker_only_probes_is_acquired(tmp_path: Path) -> None:
    """Brokers look at each other's locks twice a second, which must not keep one from starting."""
    own, file = BrokerLock(tmp_path, tmp_path / lock_file("a:1")), tmp_path / lock_file("b:1")
    BrokerLock(tmp_path, file).release()
    (lock,) = own.others()
    with lock._probed() as descriptor:
        assert descriptor is not None
        starting = subprocess.Popen([sys.executable, "-c", DIES, tmp_path, file.name, TWO])
        with pytest.raises(subprocess.TimeoutExpired):
            starting.wait(0.01)
    assert starting.wait() == 0
    assert lock.dead() == [TWO]

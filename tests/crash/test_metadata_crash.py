"""The metadata store under real crashes: killed at the n-th system call, cut from power, its disk refusing to sync."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.log.entry import entry_key
from pulsar_on_spark.metadata.records import RootRecord, TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from tests.kit.cut_disks import cut_disk
from tests.metadata.committing import forever

COMMITTING = [sys.executable, str(Path(__file__).parents[1] / "metadata" / "committing.py")]
ROOT_RECORD = RootRecord(format_version=2, cluster_id="c" * 32, quorum="3/3/2")

pytestmark = [pytest.mark.root, pytest.mark.long]


def _check(root: Path, reported: list[int]) -> None:
    """Check that every reported commit is there and that the store still commits."""
    store = MetadataStore(root)
    found = {int(record.tenant[1:]) for record in store.view().all(TenantRecord) if record.tenant.startswith("r")}
    assert set(reported) <= found
    assert found == set(range(len(found)))
    # A commit is reported after its cursor row, and one more of each may have been on the way.
    cursor = store.cursors().of("t", "s")
    assert not reported or cursor[0].n >= max(reported)
    for number in range(2):
        record = TenantRecord(tenant=f"after{number}")
        store.commit(lambda view, record=record: Change(puts=[record], keys={"after": None}))
    store.fold_and_checkpoint()
    assert not list((root / "metadata" / "set-aside").glob("*"))


def _strace(*options: str) -> list[str]:
    return ["strace", "-f", "-qq", "--seccomp-bpf", *options]


# -- killed ------------------------------------------------------------------------------------------------------------


_forking = multiprocessing.get_context("forkserver")
# No kill here is about how a writer starts; Arrow imports pandas with the first array that it makes of a list.
_forking.set_forkserver_preload(["tests.metadata.committing", "pandas"])


def _report(root: Path, to: Connection) -> None:
    os.dup2(to.fileno(), 1)
    forever(str(root))


def _killed(root: Path, commits: int, call: str, number: int) -> list[int]:
    """Let a writer report some commits, then kill it at the n-th call from now on (counted for each of its threads)."""
    reading, writing = _forking.Pipe(duplex=False)
    process = _forking.Process(target=_report, args=(root, writing))
    process.start()
    writing.close()
    try:
        with os.fdopen(os.dup(reading.fileno())) as reports:
            reported = [int(reports.readline()) for _ in range(commits)]
            inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}")
            strace = subprocess.Popen(
                ["strace", "-f", "-qq", "-o", os.devnull, *inject, "-p", str(process.pid)], stderr=subprocess.DEVNULL
            )
            try:
                process.join(60)
                assert process.exitcode == -signal.SIGKILL
            finally:
                strace.kill()
                strace.wait()
            return [*reported, *map(int, reports)]
    finally:
        process.kill()
        process.join()
        reading.close()


def test_killed_at_the_nth_call_of_each_kind(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = MetadataStore.create(root, [ROOT_RECORD])
    for number in range(56):  # the housekeeping at 64 is soon due
        record = TenantRecord(tenant="busy", note=number)
        store.commit(lambda view, record=record: Change(puts=[record], keys={"busy": None}))
    reported: list[int] = []
    points = [
        # The data file and the log entry get their names by link; their first names go by unlink.
        *((call, number) for call in ("link", "unlink") for number in (1, 2, 3, 4)),
        *(("fsync", number) for number in (1, 2, 3, 4, 5, 8, 40, 90)),
        *(("write", number) for number in (1, 4, 12)),
        *(("openat", number) for number in (1, 3, 8, 20, 60)),
    ]
    for place, (call, number) in enumerate(points):
        reported += _killed(root, 1 + place % 3, call, number)
        _check(root, reported)
    assert len(reported) > len(points)


# -- fsync -------------------------------------------------------------------------------------------------------------


def _fresh_root(tmp_path: Path) -> Path:
    MetadataStore.create(tmp_path / "root", [ROOT_RECORD])
    return tmp_path / "root"


def test_a_commit_is_reported_after_everything_below_it_is_synced(tmp_path: Path) -> None:
    root = _fresh_root(tmp_path)
    main = root / "metadata" / "main"
    log = tmp_path / "strace"
    calls = ("-y", "-o", str(log), "-e", "trace=fsync,fdatasync,link,linkat,write", "-e", "signal=none")
    subprocess.run([*_strace(*calls), *COMMITTING, str(root), "0", "2"], check=True, capture_output=True)
    synced: list[str] = []
    reports = 0
    for line in log.read_text().splitlines():
        if match := re.search(r"f(?:data)?sync\(\d+<(.*)>(?:\)|,| <unfinished)", line):
            synced.append(match.group(1))
        elif re.search(r"link(?:at)?\(", line):
            assert Path(synced[-1]).name.startswith("."), "a file gets its name when its content is durable"
        elif re.search(r"write\(1<.*p0|write\(1<.*shared", line):
            reports += 1
            folders = [Path(path).parent if Path(path).name.startswith(".") else Path(path) for path in synced[-4:]]
            assert folders == [main, main, main / "_delta_log", main / "_delta_log"]
            synced.clear()
    assert reports == 2


def test_a_commit_whose_sync_fails_is_neither_reported_nor_retried(tmp_path: Path) -> None:
    root = _fresh_root(tmp_path)
    # One call for the name of the log's folder, and four a commit: the last one of the third commit fails, as if the
    # page were dropped.
    inject = ("-o", os.devnull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=13")
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(COMMITTING[1]).parent)!r})\n"
        "from pathlib import Path\n"
        "from committing import increment\n"
        "from pulsar_on_spark.metadata.store import MetadataStore\n"
        f"store = MetadataStore(Path({str(root)!r}))\n"
        "for number in range(6):\n"
        "    try:\n"
        "        print('ok', increment(store, 'n', 'key'))\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    run = subprocess.run(
        [*_strace(*inject), sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    lines = run.stdout.splitlines()
    good = [line for line in lines if line.startswith("ok")]
    assert 1 <= len(good) <= 3
    assert lines[: len(good)] == good
    for line in lines[len(good) :]:
        assert line.startswith("MetadataError")
        assert "could not be made durable" in line
        assert "restart this machine" in line
    count = (MetadataStore(root).view().all(TenantRecord)[0].model_extra or {})["count"]
    assert len(good) <= count <= len(good) + 1


# -- power cuts --------------------------------------------------------------------------------------------------------


def _stopped(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    for _ in range(1000):
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()]
        if set(states) == {"T"}:
            return
        time.sleep(0.002)
    raise AssertionError(f"the writer did not stop: {states}")


def test_power_cuts_keep_every_reported_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For this process, which looks at what is left, the machine has started again.
    (tmp_path / "boot_id").write_text("after-the-power-cut")
    monkeypatch.setattr("pulsar_on_spark.storage.durability._BOOT_ID", tmp_path / "boot_id")
    with cut_disk(tmp_path, 96 << 20) as disk:
        root = disk.at / "root"
        MetadataStore.create(root, [ROOT_RECORD])
        with disk.cut() as after:
            _check(after / "root", [])
        process = subprocess.Popen([*COMMITTING, "forever", str(root)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        reported: list[int] = []
        try:
            for cut in range(6):
                deadline = time.monotonic() + 30
                enough = len(reported) + 3 + 7 * cut
                while len(reported) < enough and time.monotonic() < deadline:
                    time.sleep(0.003)
                    reported += map(int, (process.stdout.read() or b"").split())
                _stopped(process)
                reported += map(int, (process.stdout.read() or b"").split())
                with disk.cut() as after:
                    _check(after / "root", reported)
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert len(reported) > 60


# -- stopped between the look at the log and the new entry -------------------------------------------------------------

STOPPED_COMMIT = """
import sys
from pathlib import Path
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
store = MetadataStore(Path(sys.argv[1]))
decided = []
def decide(view):
    decided.append(view.version)
    return Change(puts=[TenantRecord(tenant="late")], keys={"late": None})
try:
    store.commit(decide)
except Exception as error:
    print(decided, type(error).__name__, error)
print([record.tenant for record in store.view(durable=True).all(TenantRecord)])
"""


def test_the_outcome_of_a_commit_under_a_cleaned_up_number_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still before it links its entry, while others commit and clean up."""
    monkeypatch.setattr("pulsar_on_spark.metadata.log.cleaning.KEEP_ENTRIES", 1)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.cleaning.KEEP_S", -1.0)
    root = _fresh_root(tmp_path)
    log = root / "metadata" / "main" / "_delta_log"
    # While strace itself is stopped, its traced process waits: the delay is the time to notice and to stop it.
    delay = ("-o", os.devnull, "-e", "trace=link,linkat", "-e", "inject=link,linkat:delay_enter=3s:when=2")
    command = [*_strace(*delay), sys.executable, "-c", STOPPED_COMMIT, str(root)]
    strace = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while not list(log.glob(".*")):
            assert strace.poll() is None
            time.sleep(0.005)
        strace.send_signal(signal.SIGSTOP)
        store = MetadataStore(root)
        for name in "abcd":
            record = TenantRecord(tenant=name)
            store.commit(lambda view, record=record: Change(puts=[record], keys={"key": None}))
            store._main.checkpoint()
        late = root / "metadata" / "main" / entry_key(2)
        assert not late.exists()
        strace.send_signal(signal.SIGCONT)
        output, _ = strace.communicate(timeout=60)
    finally:
        strace.kill()
        strace.wait()
    assert late.exists()  # it was linked, and no process counts it
    assert re.match(r"\[1\] MetadataError The outcome of a commit .* is unknown .* check whether the change is", output)
    assert output.splitlines()[1] == "['a', 'b', 'c', 'd']"
    for view in (store.view(), MetadataStore(root).view()):
        assert [record.tenant for record in view.all(TenantRecord)] == ["a", "b", "c", "d"]

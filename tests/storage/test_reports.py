import os

from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage import reports
from pulsar_on_spark.storage.reports import (
    Finding,
    LostBatches,
    ReportKind,
    clear_report,
    read_reports,
    sum_losses,
    write_report,
)

BAD = Finding(ReportKind.BAD_COPY, FileId("ab-0"), PathId(2), "fails its checksum", 1_700_000_000_000)
LOSS = Finding(ReportKind.LOSS, FileId("ab-0"), None, "no good copy", 1_700_000_000_001)


def test_reports_are_kept_until_they_are_cleared(tmp_path):
    assert read_reports(tmp_path) == []
    assert write_report(tmp_path, BAD)
    assert write_report(tmp_path, LOSS)
    assert read_reports(tmp_path) == [BAD, LOSS]
    clear_report(tmp_path, BAD)
    clear_report(tmp_path, BAD)
    assert read_reports(tmp_path) == [LOSS]


def test_a_repeat_overwrites(tmp_path):
    write_report(tmp_path, BAD)
    again = Finding(BAD.kind, BAD.file_id, BAD.path_id, "is missing", 5)
    assert write_report(tmp_path, again)
    assert read_reports(tmp_path) == [again]


def lost(topic, first, *rows, file_id="ab-0", reason="rotten"):
    return Finding(ReportKind.LOSS, FileId(file_id), None, reason, first, LostBatches(topic, first, rows))


def test_losses_of_different_batches_are_separate_reports(tmp_path):
    found = [lost("t", 3, 10), lost("t", 4, 20, 30), lost("u", 7, 1), LOSS]
    for report in [*found, *found]:
        assert write_report(tmp_path, report)
    assert {report.key for report in found} == {f"reports/{name}" for name in os.listdir(tmp_path / "reports")}
    assert sorted(read_reports(tmp_path), key=lambda report: report.key) == sorted(found, key=lambda report: report.key)
    clear_report(tmp_path, found[1])
    assert found[1] not in read_reports(tmp_path)
    assert len(read_reports(tmp_path)) == 3


def test_topics_that_lose_messages_of_the_same_batch_have_a_report_each(tmp_path):
    """Topics with few messages share record batches."""
    found = [lost("t", 3, 10), lost("u", 3, 2)]
    for report in found:
        assert write_report(tmp_path, report)
    assert [report.reason.split(":")[0] for report in sum_losses(sorted(read_reports(tmp_path), key=str))] == [
        "10 messages of t are lost",
        "2 messages of u are lost",
    ]


def test_a_loss_that_an_earlier_version_reported_can_be_cleared(tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "loss.ab-0.3-4.json").write_text(
        '{"reason": "rotten", "found_at_ms": 3, "topic": "t", "rows": [10]}'
    )
    (found,) = read_reports(tmp_path)
    assert found == lost("t", 3, 10)
    clear_report(tmp_path, found)
    assert read_reports(tmp_path) == []


def test_losses_are_summed_by_file_and_topic_and_each_batch_counts_once():
    """Reports of tasks whose ranges overlap."""
    reports = [
        BAD,
        lost("t", 3, 10),
        lost("t", 3, 10, 20),
        lost("t", 2, 5, 10, 20),
        lost("t", 9, 400),
        lost("u", 11, 7),
        lost("t", 3, 9, file_id="cd-0"),
        LOSS,
    ]
    summed = sum_losses(reports)
    assert [(report.file_id, report.reason.split(":")[0]) for report in summed] == [
        ("ab-0", "435 messages of t are lost"),
        ("ab-0", "7 messages of u are lost"),
        ("cd-0", "9 messages of t are lost"),
        ("ab-0", LOSS.reason),
    ]
    assert {report.reason.split(":")[0] for report in sum_losses(reversed(reports))} == {
        report.reason.split(":")[0] for report in summed
    }
    assert all("rotten" in report.reason for report in summed[:3])


def test_the_number_of_reports_is_bounded(tmp_path):
    for number in range(reports.MAX_REPORTS):
        # As write_report does, without a thousand syncs.
        (tmp_path / "reports").mkdir(exist_ok=True)
        (tmp_path / "reports" / f"bad-copy.file-{number}.0.json").write_text('{"reason": "r", "found_at_ms": 1}')
    assert not write_report(tmp_path, BAD)
    assert len(read_reports(tmp_path)) == reports.MAX_REPORTS
    known = Finding(ReportKind.BAD_COPY, FileId("file-7"), PathId(0), "again", 2)
    assert write_report(tmp_path, known)
    assert known in read_reports(tmp_path)


def test_a_damaged_report_still_names_its_file(tmp_path):
    write_report(tmp_path, BAD)
    (tmp_path / BAD.key).write_text("{")
    (tmp_path / "reports" / "other.txt").write_text("")
    (found,) = read_reports(tmp_path)
    assert (found.kind, found.file_id, found.path_id) == (BAD.kind, BAD.file_id, BAD.path_id)
    assert "damaged" in found.reason


def test_a_damaged_loss_can_be_cleared(tmp_path):
    report = lost("t", 3, 10, 20)
    for content in ("{", '{"reason": "r", "found_at_ms": 1}', '{"reason": "r", "found_at_ms": 1, "rows": [1]}'):
        write_report(tmp_path, report)
        (tmp_path / report.key).write_text(content)
        (found,) = read_reports(tmp_path)
        assert (found.key, found.file_id) == (report.key, report.file_id)
        assert "damaged" in found.reason
        clear_report(tmp_path, found)
        assert read_reports(tmp_path) == []


def test_a_root_that_cannot_be_written_drops_the_report(tmp_path, caplog):
    (tmp_path / "reports").write_text("in the way")
    assert not write_report(tmp_path, BAD)
    assert "Not a directory" in caplog.text
    assert (tmp_path / "reports").read_text() == "in the way"

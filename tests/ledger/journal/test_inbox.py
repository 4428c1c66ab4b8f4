"""The wake-ups of the journal's event loop: for events that it can act on, and for these always."""

import threading

from pulsar_on_spark.ledger.journal.inbox import Inbox
from pulsar_on_spark.ledger.journal.messages import CopyAcked, CopyFailed
from tests.ledger.journal.script import copy

COPIES = (copy(0), copy(1), copy(2))


class Woken:
    def __init__(self) -> None:
        self.times = 0
        self.inbox: Inbox[CopyFailed] = Inbox(self, 2)

    def __call__(self) -> None:
        self.times += 1


def test_only_the_answer_that_completes_the_quorum_wakes() -> None:
    woken = Woken()
    woken.inbox.expect((COPIES, 5))
    woken.inbox.post(CopyAcked(copy(0), 4))
    woken.inbox.post(CopyAcked(copy(1), 4))
    woken.inbox.post(CopyAcked(copy(2), 6))
    assert woken.times == 0
    woken.inbox.post(CopyAcked(copy(1), 5))
    woken.inbox.post(CopyAcked(copy(0), 5))
    assert woken.times == 1
    assert [message.copy for message in woken.inbox.take_messages()] == [copy(0), copy(1), copy(2), copy(1), copy(0)]
    woken.inbox.expect((COPIES, 7))
    woken.inbox.post(CopyAcked(copy(0), 6))
    assert woken.times == 1
    woken.inbox.post(CopyAcked(copy(0), 7))
    woken.inbox.post(CopyAcked(copy(2), 7))
    assert woken.times == 2


def test_an_unexpected_event_always_wakes_the_loop() -> None:
    woken = Woken()
    woken.inbox.post(CopyAcked(copy(0), 0))
    assert woken.times == 1
    assert len(list(woken.inbox.take_messages())) == 1
    woken.inbox.expect((COPIES, 1))
    woken.inbox.post(CopyFailed(copy(1), "it is gone"))
    woken.inbox.post(CopyFailed(copy(2), "it is gone, too"))
    assert woken.times == 2
    assert len(list(woken.inbox.take_messages())) == 2


def test_answers_of_ended_files_are_forgotten() -> None:
    woken = Woken()
    woken.inbox.expect((COPIES, 1))
    woken.inbox.post(CopyAcked(copy(0), 9))
    later = (copy(0, "2"), copy(1, "2"), copy(0))
    woken.inbox.expect((later, 5))
    woken.inbox.post(CopyAcked(copy(1, "2"), 5))
    assert woken.times == 1, "a file that continues still has its answer"
    woken.inbox.expect((COPIES[1:], 5))
    woken.inbox.expect((later, 5))
    list(woken.inbox.take_messages())
    woken.inbox.post(CopyAcked(copy(1, "2"), 5))
    assert woken.times == 1


def test_one_of_several_answering_threads_wakes_the_loop() -> None:
    for number in range(300):
        woken = Woken()
        woken.inbox.expect((COPIES, number))
        ready = threading.Barrier(3)

        def answer(path: int, inbox=woken.inbox, ready=ready, number=number) -> None:
            ready.wait()
            inbox.post(CopyAcked(copy(path), number))

        threads = [threading.Thread(target=answer, args=(path,)) for path in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert woken.times >= 1

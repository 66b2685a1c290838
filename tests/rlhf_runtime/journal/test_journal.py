"""Attempts that read the answers of earlier ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_runtime.journal.answers import AnswerJournal, CallAnswers, CallScope
from rlhf_runtime.journal.entries import Entry, read_entries
from rlhf_runtime.journal.errors import JournalMismatch
from rlhf_runtime.journal.folder import STATE_FILE, Attempt, JournalFolder, PassSettings, Position
from rlhf_runtime.telemetry.errors import CannotRecord

from ...small_disk import small_disk

ROWS = (4, 7)


class Journal:
    """The journal of a job, over its attempts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[str] = []
        self.mode = JournalMode.EXACT
        self.max_bytes = 1 << 20

    def folder(self, settings: str = "same") -> JournalFolder:
        digests = PassSettings(settings, "code")
        return JournalFolder(self.path, digests, self.mode, self.notices.append, self.max_bytes)

    def attempt(self, settings: str = "same", step: int = 0) -> Attempt:
        begun = self.folder(settings).begin(step)
        assert begun is not None
        return begun

    def begun(self) -> tuple[JournalFolder, AnswerJournal]:
        """The folder of a new attempt, and the answers of its only process."""
        folder = self.folder()
        attempt = folder.begin(0)
        assert attempt is not None
        return folder, AnswerJournal(attempt, "reward 0")

    def answers(
        self, step: int = 1, settings: str = "same", rows: tuple[int, ...] = ROWS
    ) -> CallAnswers:
        """Answers of a new attempt."""
        return of_step(AnswerJournal(self.attempt(settings), "reward 0"), step, rows)


def of_step(journal: AnswerJournal, step: int, rows: tuple[int, ...] = ROWS) -> CallAnswers:
    return journal.call_answers(CallScope(Position(step), 0, "reward.score", 0), rows)


def add(
    answers: CallAnswers, *values: float, question: str = "asked", is_final: bool = True
) -> None:
    for number, value in enumerate(values):
        answers.add("judge", number, question, value, is_final)
    answers.sync()


def find(answers: CallAnswers, number: int = 0, question: str = "asked") -> object:
    return answers.find("judge", number, lambda: question, "the response 'x'")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def test_the_next_attempt_reads_what_was_answered(journal: Journal) -> None:
    first = journal.answers()
    assert find(first) is None, "nothing is known yet"
    add(first, 0.5)
    second = journal.answers()
    assert find(second) == 0.5 and second.num_read == 1
    assert find(second, 1) is None, "not answered before the end"
    assert second.find("other", 0, str, "") is None, "another reward"


def test_rows_are_known_by_number_whoever_asks(journal: Journal) -> None:
    add(journal.answers(rows=(3, 9)), 0.3, 0.9)
    other = of_step(AnswerJournal(journal.attempt(), "reward 1"), 1, (9, 11))
    assert [find(other, number) for number in (0, 1)] == [0.9, None]


def test_calls_rounds_graphs_and_steps_are_told_apart(journal: Journal) -> None:
    add(journal.answers(), 0.5)
    again = AnswerJournal(journal.attempt(), "reward 0")
    for scope in (
        CallScope(Position(1), 0, "reward.score#2", 0),
        CallScope(Position(1), 0, "reward.score", 1),
        CallScope(Position(1), 1, "reward.score", 0),
        CallScope(Position(1, is_evaluation=True), 0, "reward.score", 0),
        CallScope(Position(2), 0, "reward.score", 0),
    ):
        assert find(again.call_answers(scope, ROWS)) is None


def test_another_question_ends_the_job(journal: Journal) -> None:
    add(journal.answers(), 0.5)
    with pytest.raises(JournalMismatch, match=r"step 1 .* judge another .* the response 'x'"):
        find(journal.answers(), question="other")


def test_another_question_is_asked_again_if_wanted(journal: Journal) -> None:
    add(journal.answers(), 0.5)
    journal.mode = JournalMode.ASK_AGAIN
    second = journal.answers()
    assert find(second, question="other") is None and second.num_different == 1
    add(second, 0.7, question="other")
    third = journal.answers()
    assert find(third, question="other") == 0.7
    assert find(third) == 0.5, "whichever is asked"


def test_other_settings_may_ask_otherwise(journal: Journal) -> None:
    add(journal.answers(settings="two ranks"), 0.5)
    second = journal.answers(settings="one rank")
    assert find(second, question="other") is None and second.num_different == 1
    assert find(second) == 0.5, "the same question has its answer"
    # Back to the first settings: the second attempt may have trained since.
    assert find(journal.answers(settings="two ranks"), question="third") is None


def test_the_later_of_two_answers_counts(journal: Journal) -> None:
    # A process of the first attempt that outlived it: the second has asked the same.
    one, two = (AnswerJournal(journal.attempt(), "reward 0") for _ in range(2))
    add(of_step(two, 1), 0.2)
    add(of_step(one, 1), 0.1)
    assert find(journal.answers()) == 0.2


def test_many_steps_at_once(journal: Journal) -> None:
    # Files of earlier steps are closed, and opened again.
    first = AnswerJournal(journal.attempt(), "reward 0")
    calls = [of_step(first, step) for step in range(1, 8)]
    for number, call in enumerate(calls):
        add(call, float(number))
    add(calls[0], 0.0, 10.0)
    again = AnswerJournal(journal.attempt(), "reward 0")
    assert [find(of_step(again, step)) for step in range(1, 8)] == list(range(7))
    assert find(of_step(again, 1), 1) == 10.0


def test_answers_are_dropped_with_their_checkpoints(journal: Journal) -> None:
    folder, answers = journal.begun()
    for step in (1, 2, 3):
        add(of_step(answers, step), float(step))
    folder.drop_before(3)
    assert sorted(path.name for path in journal.path.glob("step-*")) == ["step-000003"]
    resumed = AnswerJournal(journal.attempt(step=2), "reward 0")
    assert find(of_step(resumed, 3)) == 3.0 and not journal.notices


def test_a_resume_from_an_older_checkpoint_asks_everything_again(journal: Journal) -> None:
    # Step 2 is asked again; its answers change the questions of step 3.
    folder, answers = journal.begun()
    add(of_step(answers, 3), 3.0)
    folder.drop_before(3)
    resumed = AnswerJournal(journal.attempt(step=1), "reward 0")
    assert find(of_step(resumed, 3), question="other") is None
    assert "no answers to the next steps" in journal.notices[0]
    add(of_step(resumed, 2), 2.0)
    assert find(of_step(AnswerJournal(journal.attempt(step=1), "reward 0"), 2)) == 2.0


def test_the_oldest_answers_go_first_at_the_limit(journal: Journal) -> None:
    journal.max_bytes = 150
    folder, answers = journal.begun()
    for step in (1, 2, 3):
        add(of_step(answers, step), float(step))
        folder.end_pass(Position(step))
    assert sorted(path.name for path in journal.path.glob("step-*")) == [
        "step-000002",
        "step-000003",
    ]
    assert "reached its limit of 150 bytes" in journal.notices[0]
    journal.attempt(step=0)
    assert not list(journal.path.glob("step-*"))


def test_nothing_is_kept_without_a_journal(journal: Journal) -> None:
    add(journal.answers(), 0.5)
    journal.mode = JournalMode.OFF
    off = journal.folder()
    assert off.begin(0) is None
    off.end_pass(Position(1))
    off.drop_before(1)
    off.forget_from(Position(1))
    journal.mode = JournalMode.EXACT
    assert find(journal.answers(), question="other") is None, "steps in between are unknown"


def test_steps_that_ended_the_job_are_asked_again(journal: Journal) -> None:
    first = AnswerJournal(journal.attempt(), "reward 0")
    for step in range(1, 6):
        add(of_step(first, step), float(step))
    folder, _ = journal.begun()
    folder.forget_from(Position(3))
    again = AnswerJournal(journal.attempt(), "reward 0")
    assert [find(of_step(again, step)) for step in range(1, 6)] == [1.0, 2.0, None, None, None]
    add(of_step(first, 3), 3.0)  # a process that has outlived its attempt
    late = AnswerJournal(journal.attempt(), "reward 0")
    assert find(of_step(late, 3), question="other") is None, "no mismatch"


def test_an_evaluation_that_ended_the_job_leaves_the_answers_of_its_step(journal: Journal) -> None:
    first = AnswerJournal(journal.attempt(), "reward 0")
    passes = [Position(1), Position(1, True), Position(2), Position(2, True), Position(3)]

    def call(journal: AnswerJournal, position: Position) -> CallAnswers:
        return journal.call_answers(CallScope(position, 0, "reward.score", 0), ROWS)

    for number, position in enumerate(passes):
        add(call(first, position), float(number))
    folder, _ = journal.begun()
    folder.forget_from(Position(2, is_evaluation=True))
    again = AnswerJournal(journal.attempt(), "reward 0")
    assert [find(call(again, one)) for one in passes] == [0.0, 1.0, 2.0, None, None]


def test_answers_that_need_the_end_of_their_call_are_written_then(journal: Journal) -> None:
    interrupted = journal.answers()
    interrupted.add("judge", 0, "asked", 0.5, is_final=False)
    ended = journal.answers()
    assert find(ended) is None
    add(ended, 0.7, is_final=False)
    assert find(journal.answers()) == 0.7


def test_foreign_files_do_no_harm(journal: Journal) -> None:
    add(journal.answers(), 0.5)
    (journal.path / "step-000001" / "notes.jsonl").write_text("{}")
    (journal.path / "step-000001" / "000001-folder.jsonl").mkdir()
    (journal.path / "step-1.bak").mkdir()
    assert find(journal.answers()) == 0.5


def test_a_journal_that_cannot_be_read_now_is_not_lost(journal: Journal) -> None:
    add(journal.answers(), 0.5)
    state = journal.path / STATE_FILE
    state.rename(journal.path / "kept")
    state.mkdir()
    with pytest.raises(CannotRecord, match="IsADirectory"):
        journal.attempt()
    state.rmdir()
    (journal.path / "kept").rename(state)
    assert find(journal.answers()) == 0.5


def test_a_late_writer_of_a_cleared_journal_is_no_mismatch(journal: Journal) -> None:
    folder, late = journal.begun()
    folder.drop_before(3)
    journal.attempt(step=0)
    add(of_step(late, 1), 0.5)
    assert find(journal.answers(), question="other") is None


def cut_off(content: bytes) -> bytes:
    return content[:-5]


def altered(content: bytes) -> bytes:
    return content.replace(b"0.5", b"0.6")


@pytest.mark.parametrize("damage", [cut_off, altered])
def test_a_damaged_answer_is_no_answer(journal: Journal, damage: Callable[[bytes], bytes]) -> None:
    answers = journal.answers()
    add(answers, 0.4)
    answers.add("judge", 1, "asked", 0.5, is_final=True)
    answers.sync()
    (file,) = journal.path.glob("step-*/*.jsonl")
    content = file.read_bytes()
    file.write_bytes(damage(content))
    again = journal.answers()
    assert [find(again, number) for number in (0, 1)] == [0.4, None]
    assert not again.damage_notices, "the process may have been killed"
    add(again, 0.0, 0.5)
    (journal.path / "step-000001" / file.name).write_bytes(damage(content)[:-1] + b"\n" + content)
    (notice,) = journal.answers().damage_notices
    assert notice.startswith(f"{journal.path / 'step-000001' / file.name} has damaged lines")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}"),
        '{"attempt": 1, "settings": "", "comparable_since": 1, "kept_from": 0, "version": 2}',
        '{"attempt": "1", "settings": "", "comparable_since": 1, "kept_from": 0, "version": 1}',
    ],
)
def test_a_damaged_journal_is_not_used(journal: Journal, text: str) -> None:
    add(journal.answers(), 0.5)
    (journal.path / STATE_FILE).write_text(text)
    assert find(journal.answers(), question="other") is None
    assert "cannot be used" in journal.notices[0]


def test_lines_survive_a_round_trip() -> None:
    entries = [
        Entry(
            ("step", "reward.score", 0, "judge", 7), "ab12", [None, "timedOut", "\n\u2028é\ud800"]
        ),
        Entry(("evaluation 1", "x", 1, "y", 0), "", 0.1),
    ]
    content = b"".join(entry.to_line() for entry in entries)
    assert list(read_entries(content)) == entries
    assert all(json.loads(line.split(b" ", 1)[1]) for line in content.splitlines())


def test_a_full_disk_is_an_error_and_what_was_written_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        journal = Journal(disk.seen / "journal")
        answers = journal.answers()
        add(answers, 0.5)
        answers.add("judge", 1, "asked", "x" * 2_000_000, is_final=True)
        answers.add("judge", 1, "asked", 0.7, is_final=True)
        with pytest.raises(CannotRecord, match="No space left"):
            answers.sync()
        (file,) = journal.path.glob("step-*/*.jsonl")
        entry = next(read_entries(file.read_bytes()))
        assert entry is not None and entry.answer == 0.5

"""Effects of a failure on what the next workers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import RlhfError
from rlhf_api.spec.checkpoint import JournalMode
from rlhf_cli.train import note_failure
from rlhf_runtime.environments.errors import EnvironmentsFailed, EnvironmentsLost
from rlhf_runtime.journal.answers import AnswerJournal, CallScope
from rlhf_runtime.journal.folder import JournalFolder, PassSettings, Position, pass_folders
from rlhf_runtime.rewards.errors import NothingScored

PASSES = (Position(1), Position(1, True), Position(2), Position(2, True), Position(3))


@pytest.mark.parametrize(
    ("error", "num_kept"),
    [
        (NothingScored("no score", 2), 2),
        (EnvironmentsFailed("too many", 2, in_evaluation=False), 2),
        (EnvironmentsFailed("too many", 2, in_evaluation=True), 3),
        (EnvironmentsLost("no server"), 5),
    ],
)
def test_a_pass_that_ended_the_job_is_asked_again(
    tmp_path: Path, error: RlhfError, num_kept: int
) -> None:
    folder = JournalFolder(tmp_path, PassSettings("job", "code"), JournalMode.EXACT, print)
    attempt = folder.begin(0)
    assert attempt is not None
    journal = AnswerJournal(attempt, "host")
    for position in PASSES:
        answers = journal.call_answers(CallScope(position, 0, "actor.generate", 0), range(1))
        answers.add("environment begin", 0, "question", {}, is_final=True)
        answers.sync()
    recorder: Any = None
    note_failure(folder, recorder, error)
    assert sorted(pass_folders(tmp_path)) == list(PASSES[:num_kept])

"""What the controller tells people through its one listener."""

from __future__ import annotations

import io
from pathlib import Path

from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.plain_progress import PlainProgress
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.trackers import TrackerGroup


def told(folder: Path, **counts: int) -> list[str]:
    stream = io.StringIO()
    journal = Journal(RunFolder(folder), PlainProgress(stream), TrackerGroup({}))
    journal.notice_data(counts)
    return stream.getvalue().splitlines()


def test_skipped_rows_are_told_of_both_splits(tmp_path: Path) -> None:
    lines = told(
        tmp_path,
        train=90,
        train_invalid=4,
        train_too_long=6,
        evaluation=0,
        evaluation_invalid=0,
        evaluation_too_long=5,
    )
    assert [line[line.index("data.") :] for line in lines] == [
        "data.train: 10 rows skipped (4 invalid, 6 with a prompt over rollout.maxPromptTokens); "
        "90 are used",
        "data.evaluation: 5 rows skipped (0 invalid, 5 with a prompt over "
        "rollout.maxPromptTokens); 0 are used",
    ]


def test_nothing_is_told_where_all_rows_are_used(tmp_path: Path) -> None:
    assert told(tmp_path, train=90, train_invalid=0, train_too_long=0) == []

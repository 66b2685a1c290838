"""`rlhf replay` shows a conversation again, and says what there is where it finds none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_api.spec.stopping import StopReason
from rlhf_cli.app import app
from rlhf_runtime.environments.records import EpisodeRecords, digest
from rlhf_runtime.environments.results import EpisodeKey
from rlhf_runtime.journal.answers import AnswerJournal, CallScope
from rlhf_runtime.journal.folder import JournalFolder, PassSettings, Position
from rlhf_runtime.telemetry.conversations import ConversationTurn, ConversationView
from rlhf_runtime.telemetry.records import EvaluationRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind

CALLS = [["add", {"a": 1, "b": 2}], ["add(", "no end"]]


def record(journal: AnswerJournal, position: Position, prompt: int, sample: int) -> None:
    """Write a conversation of two turns, as an environment host does."""
    records = EpisodeRecords(journal)
    key = EpisodeKey(CallScope(position, 0, "actor.generate", 0), 10 * prompt + sample)

    def add(party: str, question: str, result: dict[str, Any], notes: dict[str, Any]) -> None:
        entry = {**result, "seconds": 0.25, "notes": notes}
        records.add(key, f"environment {party}", question, entry)

    notes = {"prompt_id": prompt, "sample": sample, "prompt": f"question {prompt}"}
    add("begin", "q", {"observation": "welcome"}, notes)
    turn = digest(digest("q", "welcome"), 0, CALLS)
    answers = [f"3 of {sample}", "error: no end"]
    result = {"answers": answers, "reward": 0.5, "errors": 1, "wrong": [1]}
    add("turn 0", turn, result, {"text": "add(1, 2)\nadd(", "calls": CALLS})
    end = digest(digest(turn, answers, 0.5), "end")
    add("end", end, {"reward": 1.5, "reason": "TurnLimit"}, {"num_turns": 2, "text": "3\x1b[2J"})
    records.complete(key.call)


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    with RunFolder(tmp_path / "run") as folder:
        folder.append(EvaluationRecord(0, {}))
        journal_folder = JournalFolder(
            folder.journal, PassSettings("job", "code"), JournalMode.EXACT, print
        )
        attempt = journal_folder.begin(0)
        assert attempt is not None
        journal = AnswerJournal(attempt, "environment")
        for position in (Position(3), Position(4), Position(4, is_evaluation=True)):
            for sample in (0, 1):
                record(journal, position, 7, sample)
        for step in (1, 3):
            folder.write_samples([sample_of(step)])
    return folder


def sample_of(step: int) -> ResponseSample:
    view = ConversationView((ConversationTurn(0, f"of step {step}"),), num_turns=1)
    return ResponseSample(
        kind=SampleKind.STEP,
        step=step,
        prompt_id=7,
        sample=1,
        row="rows.jsonl, row 7, counted from 0",
        prompt="question",
        response="",
        tokens=9,
        ended_by=StopReason.TURN_LIMIT,
        scores={"reward": 1.5},
        advantage=0.25,
        conversation=view,
    )


def replay(folder: RunFolder, *words: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(folder.path), *words])


def test_a_conversation_is_shown_with_calls_answers_rewards_and_limits(
    run_folder: RunFolder,
) -> None:
    result = replay(run_folder, "4", "7", "1", "--evaluation")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "evaluation after step 4, prompt 7, response 1\n"
        "call actor.generate, 2 turns, ended by TurnLimit, 0.75 s in the environment\n"
        "prompt\n  question 7\n"
        "observation of reset\n  welcome\n"
        "turn 1  reward=0.5\n  add(1, 2)\n  add(\n"
        "call add(a=1, b=2)\n  3 of 1\n"
        "call add(\n  error: no end\n"
        "turn 2\n  3\\x1b[2J\n"
        "reward of the environment: 1.5\n\n"
    )


def test_scores_and_advantage_are_those_of_the_samples(run_folder: RunFolder) -> None:
    shown = replay(run_folder, "3", "7", "1").stdout
    assert "reward=1.5 advantage=0.25 (9 tokens, TurnLimit)\nrows.jsonl, row 7" in shown
    assert "advantage" not in replay(run_folder, "3", "7").stdout, "there is no sample of it"


def test_json_has_everything(run_folder: RunFolder) -> None:
    (value,) = json.loads(replay(run_folder, "3", "7", "1", "--json").stdout)
    assert (value["kind"], value["step"], value["row"]) == ("step", 3, 71)
    assert (value["ended_by"], value["reward"], value["seconds"]) == ("TurnLimit", 1.5, [0.25] * 3)
    assert value["turns"][0]["calls"][1] == {
        "call": "add(",
        "answer": "error: no end",
        "is_error": True,
    }
    assert (value["scores"], value["advantage"]) == ({"reward": 1.5}, 0.25)


def test_the_samples_have_what_the_journal_has_dropped(run_folder: RunFolder) -> None:
    shown = replay(run_folder, "1", "7", "1").stdout
    assert "of the samples, shortened, 1 turn, ended by TurnLimit\n" in shown
    assert "turn 1\n  of step 1\n" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("9", "7"), "got step 9 of .*allowed step 1, 3, 4 or --evaluation after step 4, as"),
        (("3", "8"), "got prompt 8 in step 3, allowed 7; give one of these"),
        (("3", "7", "5"), "got response 5 to prompt 7, allowed 0, 1; give one of these"),
    ],
)
def test_an_error_says_which_conversations_there_are(
    run_folder: RunFolder, words: tuple[str, ...], says: str
) -> None:
    result = replay(run_folder, *words)
    assert result.exit_code == 2 and result.output.startswith("NoConversation: ")
    assert re.search(says, result.output), result.output


def test_a_run_without_tools_says_so(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.append(EvaluationRecord(0, {}))
    assert "has none: the job has no rollout.environment" in replay(folder, "1", "7").output
    assert "NotARun: no run in this folder" in replay(RunFolder(tmp_path), "1", "7").output

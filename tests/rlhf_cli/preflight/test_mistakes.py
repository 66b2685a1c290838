"""A new user's mistakes end before anything starts: where, what, got, allowed, do; all at once."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_api.errors import SeveralErrors
from rlhf_cli.app import app
from rlhf_cli.local_run import run_job
from rlhf_runtime.data.errors import DataNotFound
from rlhf_runtime.models.errors import ModelIncomplete

from ...unprivileged import permissions_hold
from ..mistakes import MISTAKES, Mistake
from .jobs import ROWS, write

pytestmark = pytest.mark.slow

runner = CliRunner()
EXACT_MATCH = "rlhf_runtime.rewards.exact_match:score"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_anything_starts(place: Path, model: Path, name: str) -> None:
    file = write(place, model, MISTAKES[name])
    with permissions_hold():
        result = runner.invoke(app, ["validate", "--deep", str(file)])
    assert result.exit_code in (2, 3), result.output
    assert re.search(MISTAKES[name].says, result.output), result.output
    assert "fault of rlhf" not in result.output


def test_a_job_without_mistakes_is_described(place: Path, model: Path) -> None:
    change = {"schedule": {"miniBatchPrompts": 3}}
    file = write(place, model, Mistake("", change, {7: {"prompt": "1+1+1+1+1="}}))
    result = runner.invoke(app, ["validate", "--deep", str(file)])
    first, *others = result.output.splitlines()
    assert (result.exit_code, first) == (0, f"{file}: add is valid and can start")
    assert others[0] == (
        f"  data.train: 32 rows of {place}/rows.jsonl; the longest prompt is row 7 with 10 tokens "
        "(rollout.maxPromptTokens = 16)"
    )
    assert others[1:3] == [
        "  data.train: row 0, prompt, 4 tokens: '0+1='",
        "  data.train: row 0, prompt, ids of tokens: 3 41 4 40",
    ]
    assert others[3] == (
        "  data.train: row 0, the reward right: 1 for the answer '1', 0 for an empty response"
    )
    assert len(others) == 7 and "a step makes 3 updates of 3 or 2 prompts" in others[6]


def test_conversations_with_an_environment_are_played(place: Path, model: Path) -> None:
    change = {"rollout": {"environment": {"entrypoint": "adders:Adder"}}}
    result = runner.invoke(
        app, ["validate", "--deep", str(write(place, model, Mistake("", change)))]
    )
    assert result.exit_code == 0, result.output
    begin = "  rollout.environment: adders:Adder, data.train: row 0, "
    assert (
        f"{begin}the response, 10 of 13 tokens are sampled: 'add(1,1)<eos>' [answer: '\\n2\\n'] "
        "'<eos>'\n" in result.output
    )
    assert f"{begin}add(a=1, b=1) -> '2' (" in result.output


def test_what_is_trained_on_of_a_conversation_is_shown(place: Path, model: Path) -> None:
    chat = Path(shutil.copytree(model, place / "chat"))
    (chat / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role[0] + ':' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    turns = (("user", "1+1="), ("assistant", "2"), ("user", "2+2="), ("assistant", "4"))
    messages = [{"role": role, "content": content} for role, content in turns]
    rows = dict.fromkeys(range(len(ROWS)), {"messages": messages})
    fields = {"promptField": "messages", "answerField": "messages", "trainOn": "AllAnswers"}
    change = {
        "algorithm": {"type": "SFT"},
        "models": {"actor": {"source": {"path": str(chat)}}},
        "data": {"train": fields},
        "rewards": [],
    }
    result = runner.invoke(
        app, ["validate", "--deep", str(write(place, model, Mistake("", change, rows)))]
    )
    assert result.exit_code == 0, result.output
    assert "data.train: row 0, prompt, 9 tokens: 'u:1+1=<eos>a:'\n" in result.output
    assert (
        "data.train: row 0, trained answers, 4 of 13 tokens: "
        "'2<eos>' [context: 'u:2+2=<eos>a:'] '4<eos>'\n" in result.output
    )


def test_prompts_that_are_trained_on_and_evaluated_are_counted(place: Path, model: Path) -> None:
    change = {"data": {"evaluation": {"path": "DATA"}}}
    result = runner.invoke(
        app, ["validate", "--deep", str(write(place, model, Mistake("", change)))]
    )
    assert result.exit_code == 0, result.output
    warning = "  warning: 32 of 32 prompts of data.evaluation are also in data.train: "
    assert warning in result.output


def test_rows_that_a_verifier_cannot_score_are_counted(place: Path, model: Path) -> None:
    change = {"rewards": [{"function": {"entrypoint": EXACT_MATCH}}]}
    some = Mistake("", change, {3: {"answer": None}, 5: {"answer": {"is": "5"}}})
    result = runner.invoke(app, ["validate", "--deep", str(write(place, model, some))])
    assert result.exit_code == 0, result.output
    counted = "cannot score 2 of 32 rows of data.train, for their answer"
    told = f"  warning: {EXACT_MATCH} {counted}: got row 3: an answer is of type NoneType"
    assert told in result.output
    every = Mistake("", change, {row: {"answer": {"is": "5"}} for row in range(32)})
    result = runner.invoke(app, ["validate", "--deep", str(write(place, model, every))])
    assert result.exit_code == 3
    assert "cannot use answer in any row of data.train: got row 0: an answer" in result.output


PLACED = {
    "no such column": "      promptField: question",
    "fewer rows than a step takes": "    promptsPerStep: 64",
    "two verifiers, both wrong": "      entrypoint: addv:one",
    "heads that no engine computes": "      source:",
    "an address that nobody knows": "      path: /no.jsonl",
}


@pytest.mark.parametrize("name", PLACED)
def test_a_mistake_is_told_with_its_line(place: Path, model: Path, name: str) -> None:
    file = write(place, model, MISTAKES[name])
    told = runner.invoke(app, ["validate", "--deep", str(file)]).output.splitlines()[0]
    assert (found := re.match(rf"{re.escape(str(file))}:(\d+):(\d+): ", told)), told
    line = file.read_text().splitlines()[int(found[1]) - 1]
    assert line.startswith(PLACED[name])


@pytest.mark.parametrize(
    "override",
    [
        "spec.rewards[0].function.entrypoint=addv:scor",
        "spec.models.actor.source.path=/no/model",
        "spec.checkpoint.storage.uri=file://kept",
        "spec.schedule={steps: 2, promptsPerStep: 64}",
    ],
)
def test_what_an_override_gives_is_told_as_its_own(place: Path, model: Path, override: str) -> None:
    file = write(place, model, Mistake(""))
    result = runner.invoke(app, ["run", str(file), "--set", override, "-o", str(place / "out")])
    assert re.match(rf"\w+: --set {re.escape(override)}: ", result.output), result.output
    assert not (place / "out").exists()


@pytest.mark.parametrize("override", ["spec.code.local=nowhere", "spec.data.train.path=no.jsonl"])
def test_of_standard_input_what_gave_a_mistake_is_told(
    place: Path, model: Path, override: str
) -> None:
    change = {"checkpoint": {"storage": {"uri": "s4://a/b"}}}
    text = write(place, model, Mistake("", change)).read_text()
    result = runner.invoke(app, ["validate", "--deep", "-", "--set", override], input=text)
    told = sorted(result.output.splitlines()[:-1])
    assert told[0].startswith(f"--set {override}: ") and told[1].startswith("<stdin>: Storage")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("spec.algorithm.custom.entrypoint=mine:Mnie", "did you mean Mine?"),
        ("spec.algorithm.custom.parameters={clip: 1}", "does not take the parameters: got clip"),
    ],
)
def test_an_algorithms_mistakes_are_told_where_the_manifest_makes_them(
    place: Path, model: Path, override: str, says: str
) -> None:
    operation = 'Custom("mine:shifted", ["reward_scores"], ["x"], parameters={"by": 1})'
    file = write(place, model, Mistake("", operation=operation))
    result = runner.invoke(app, ["plan", str(file), "--set", override])
    assert result.output.startswith(f"InvalidAlgorithm: --set {override}: "), result.output
    assert says in result.output


def test_rows_that_are_left_out_are_counted(place: Path, model: Path) -> None:
    change = {"data": {"onInvalidRow": "Skip", "onLongPrompt": "Skip"}}
    rows: dict[int, dict[str, Any]] = {1: {"prompt": None}, 2: {"prompt": "1" * 20}}
    file = write(place, model, Mistake("", change, rows | {3: {"prompt": "1" * 30}}))
    told = runner.invoke(app, ["validate", "--deep", str(file)]).output
    assert (
        f"data.train: 29 rows of {place}/rows.jsonl, without 1 that cannot be used "
        "(data.onInvalidRow: Skip) and 2 whose prompt is too long (data.onLongPrompt: Skip); the"
    ) in told


def test_a_run_tells_the_same_and_leaves_nothing(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # whoever imports it fails
    file = write(place, model, MISTAKES["everything at once"])
    with pytest.raises(SeveralErrors) as caught:
        run_job(file, place / "out", 1, None, None, (), fresh=False)
    kinds = [type(error) for error in caught.value.errors]
    assert kinds[1:] == [ModelIncomplete, DataNotFound]
    assert not (place / "out").exists()

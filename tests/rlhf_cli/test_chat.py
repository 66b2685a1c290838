"""`rlhf chat` answers as the model does, with the prompts of its job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from rlhf_cli.app import app
from rlhf_cli.chat_model import ChatRequest, open_model
from rlhf_cli.chat_session import answer_lines
from rlhf_runtime.data.row_checks import RowProblem
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.telemetry.run_folder import RunFolder

from .run_manifests import run_manifest

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{{ {'system': '!', 'user': '='}.get(m.role, ';') }}"
    "{% endfor %}{% if stop %}{{ '.' }}{% endif %}"
)
SETTINGS = {
    "data": {"train": {"systemPrompt": "s", "chatTemplateArguments": {"stop": True}}},
    "rollout": {"maxResponseTokens": 5, "temperature": 0.5},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama_folder(0, tmp_path / "models")


def chat(*words: object, lines: str) -> Result:
    return CliRunner().invoke(app, ["chat", *map(str, words)], input=lines)


def greedy(folder: Path, prompt: str, num_tokens: int, template: bool = True) -> str:
    """The answer of transformers."""
    tokenizer = TextTokenizer(folder)
    ids = torch.tensor(tokenizer.encode([prompt], not template).values[None].astype("int64"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ends = list(tokenizer.end_token_ids)
    out = model.generate(
        ids, do_sample=False, max_new_tokens=num_tokens, eos_token_id=ends, pad_token_id=ends[0]
    )
    answer = [token for token in out[0, ids.shape[1] :].tolist() if token not in ends]
    return tokenizer.text_of(answer)


def test_lines_of_a_model_without_a_template_stand_alone(model: Path) -> None:
    done = chat(model, "--temperature", 0, "--max-tokens", 4, lines="402991=\n\n31=\n")
    assert done.exit_code == 0, done.output
    expected = [greedy(model, text, 4, template=False) for text in ("402991=", "31=")]
    assert done.stdout.splitlines() == expected
    assert "no chat template: each line stands alone" in done.stderr


def test_an_answer_ends_at_a_stop_text_of_its_job(model: Path, tmp_path: Path) -> None:
    answer = greedy(model, "402991=", 8, template=False)
    assert len(answer) == 8
    with RunFolder(tmp_path / "run") as run:
        run.path.mkdir()
        run.write_manifest(run_manifest({"rollout": {"stop": [answer[2:4]]}}))
    model.rename(run.model)
    done = chat(run.path, "--temperature", 0, "--max-tokens", 8, lines="402991=\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip("\n") == answer[: answer.find(answer[2:4]) + 2]


def test_a_conversation_has_the_prompts_and_the_limits_of_its_job(
    model: Path, tmp_path: Path
) -> None:
    with RunFolder(tmp_path / "run") as run:
        run.path.mkdir()
        run.write_manifest(run_manifest(SETTINGS))
    model.rename(run.model)
    (run.model / "chat_template.jinja").write_text(TEMPLATE)
    lines = "1\n2\n/new\n3\n/quit\n4\n"
    done = chat(run.path, "--temperature", 0, lines=lines)
    assert done.exit_code == 0, done.output
    first = greedy(run.model, "s!1=.", 5)
    second = greedy(run.model, f"s!1={first};2=.", 5)
    assert done.stdout.splitlines() == [first, second, greedy(run.model, "s!3=.", 5)]
    other = chat(run.path, "--temperature", 0, "--system", "t", lines="1\n")
    assert other.stdout.splitlines() == [greedy(run.model, "t!1=.", 5)]
    with open_model(ChatRequest(str(run.model))) as opened:
        assert (opened.temperature, opened.max_tokens) == (0.5, 5), "the job's, by its model"


def test_sampled_answers_are_repeated_by_a_seed(model: Path) -> None:
    words = ("--max-tokens", 8, "--seed")
    answers = [chat(model, *words, seed, lines="1=\n").stdout for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_a_conversation_that_is_too_long_says_so(model: Path) -> None:
    done = chat(model, "--max-tokens", 100_000, lines="1=\n")
    assert done.exit_code == 0 and "does not fit into the model's context" in done.stderr


def test_an_answer_is_cut_off_where_the_context_is_full_if_its_job_does_so(
    model: Path, tmp_path: Path
) -> None:
    with RunFolder(tmp_path / "run") as run:
        run.path.mkdir()
        run.write_manifest(run_manifest({"rollout": {"onStop": {"ContextLimit": "Mask"}}}))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 9}))
    answer = greedy(model, "402991=", 2, template=False)
    model.rename(run.model)
    done = chat(run.path, "--temperature", 0, "--max-tokens", 8, lines="402991=\n40299100=\n")
    assert done.exit_code == 0 and done.stdout.strip("\n") == answer
    assert "does not fit into the model's context: got 9 tokens" in done.stderr


def test_no_model_is_an_error(tmp_path: Path) -> None:
    missing = chat(tmp_path / "none", lines="")
    assert missing.exit_code == 3 and "ModelNotFound" in missing.stderr


class Scripted:
    """Answers by the lines' own words."""

    def __init__(self) -> None:
        self.forgotten = 0

    def answer(self, text: str, write: Callable[[str], None]) -> str:
        write(text[:1])
        if text == "interrupt":
            raise KeyboardInterrupt
        if text == "refuse":
            raise RowProblem("no")
        write(text[1:])
        return text

    def forget(self) -> None:
        self.forgotten += 1


def test_an_interrupted_answer_ends_and_the_conversation_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written: list[str] = []
    model = Scripted()

    def lines() -> Iterator[str]:
        yield from ("one", "interrupt", "  ", "refuse", "/new", "/foo", "two", "/quit", "three")

    answer_lines(model, lines(), written.append)
    assert "".join(written) == "one\ni\nrtwo\n" and model.forgotten == 1
    errors = capsys.readouterr().err
    assert "no; write another message, or /new" in errors
    assert "no such command: got /foo, allowed /new and /quit" in errors

"""Documents: every relative link leads somewhere, every command in a code block exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from rlhf_cli.app import app

from .tracked_files import ROOT, documents, shown

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("http://", "https://", "mailto:")
SHELLS = ("", "bash", "console", "sh", "shell")


def links(document: Path) -> Iterator[str]:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        if not match["target"].startswith(ELSEWHERE):
            yield match["target"]


def headings(document: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(document: Path) -> Iterator[list[str]]:
    """Commands of a document's shell blocks as words, comments left out."""
    for block in FENCE.finditer(document.read_text(encoding="utf-8")):
        if block["language"] not in SHELLS:
            continue
        for line in block["body"].replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ").strip().removeprefix(".venv/bin/")
            if line.startswith(("rlhf ", "make ")):
                yield shlex.split(line, comments=True)


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))


def problem_of(words: list[str]) -> str | None:
    """What is wrong with a command; None if nothing is."""
    program, *arguments = words
    missing = [word for word in arguments if word.startswith("examples/") and not _exists(word)]
    if missing:
        return f"no such file: {missing[0]}"
    if program == "make":
        wrong = [w for w in arguments if "=" not in w and w not in make_targets()]
        return f"no such target: {wrong[0]}" if wrong else None
    return _problem_of_rlhf(arguments)


def _problem_of_rlhf(arguments: list[str]) -> str | None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    name = arguments[0]
    if name not in group.commands:
        return f"no such command: {name}"
    known = {option for parameter in group.commands[name].params for option in parameter.opts}
    used = {word.partition("=")[0] for word in arguments[1:] if re.match(r"--?[a-z]", word)}
    unknown = used - known - {"-h", "--help"}
    return f"no such option: {sorted(unknown)[0]}" if unknown else None


def _exists(path: str) -> bool:
    return any(ROOT.glob(path))


@pytest.mark.parametrize("document", documents(), ids=shown)
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in links(document):
        name, _, anchor = target.partition("#")
        place = (document.parent / name) if name else document
        if not place.exists() or (
            anchor and place.suffix == ".md" and anchor not in headings(place)
        ):
            broken.append(target)
    assert not broken, f"{shown(document)}: {', '.join(broken)}"


@pytest.mark.parametrize("document", documents(), ids=shown)
def test_commands_in_code_blocks_exist(document: Path) -> None:
    wrong = [
        f"{shlex.join(words)}: {problem}"
        for words in commands(document)
        if (problem := problem_of(words)) is not None
    ]
    assert not wrong, f"{shown(document)}:\n" + "\n".join(wrong)


def test_the_readme_has_commands_to_check() -> None:
    found = [words[:2] for words in commands(ROOT / "README.md")]
    assert ["make", "demo"] in found and ["make", "test"] in found
    assert any(words[0] == "rlhf" for words in found)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make demo", None),
        ("make dmeo", "no such target: dmeo"),
        ("make test ARGS=-x", None),
        ("rlhf run job.yaml --steps 3", None),
        ("rlhf go job.yaml", "no such command: go"),
        ("rlhf run job.yaml --step 3", "no such option: --step"),
        ("rlhf run examples/none.yaml", "no such file: examples/none.yaml"),
    ],
)
def test_a_wrong_command_is_noticed(command: str, problem: str | None) -> None:
    assert problem_of(shlex.split(command)) == problem

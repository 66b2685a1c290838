"""Code from Git, fetched by the very script that runs in the init container."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import PodResources
from rlhf_operator.apply.build.code import code_init_containers

from .world import manifest

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")


def init_container(**git: Any) -> Mapping[str, Any]:
    job = RLHFJob.model_validate(manifest(code={"git": git}))
    [container] = code_init_containers(job, PodResources(), {})
    return container


@dataclass
class Repository:
    """A repository with two commits; the first one has a tag."""

    path: Path
    first: str

    @property
    def url(self) -> str:
        return self.path.as_uri()


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *AUTHOR, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    path = tmp_path / "repository"
    (path / "src").mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "config", "uploadpack.allowAnySHA1InWant", "true")
    (path / "src" / "mine.py").write_text("version = 1\n")
    git(path, "add", "-A")
    git(path, "commit", "--quiet", "-m", "one")
    git(path, "tag", "v1")
    (path / "src" / "mine.py").write_text("version = 2\n")
    git(path, "commit", "--quiet", "-am", "two")
    return Repository(path, git(path, "rev-parse", "v1"))


def run(container: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it with folders of its own in the place of the container's."""
    folder.mkdir(exist_ok=True)
    (folder / "code").mkdir(exist_ok=True)
    program, option, script = container["command"]
    assert (program, option) == ("/bin/sh", "-c")
    env = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    env |= {"PATH": "/usr/bin:/bin", "HOME": str(folder), "CODE_FOLDER": str(folder / "code")}
    return subprocess.run(
        [program, option, script.replace("/tmp/", f"{folder}/")],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("revision", "version"), [("main", 2), ("v1", 1), (None, 1)])
def test_a_branch_a_tag_or_a_commit_is_fetched(
    repository: Repository, tmp_path: Path, revision: str | None, version: int
) -> None:
    container = init_container(url=repository.url, revision=revision or repository.first)
    done = run(container, tmp_path / "pod")
    assert done.returncode == 0, done.stderr
    fetched = tmp_path / "pod" / "code" / "src" / "mine.py"
    assert fetched.read_text() == f"version = {version}\n"


def test_a_folder_of_the_repository_is_put_on_the_path(
    repository: Repository, tmp_path: Path
) -> None:
    container = init_container(url=repository.url, revision="main", subPath="src")
    assert run(container, tmp_path / "pod").returncode == 0
    assert (tmp_path / "pod" / "code" / "mine.py").is_file()


@pytest.mark.parametrize("word", ["--upload-pack=touch {0};", "-u touch {0};", "$(touch {0})"])
@pytest.mark.parametrize("place", ["url", "revision", "subPath"])
def test_words_are_never_options_or_commands(
    repository: Repository, tmp_path: Path, word: str, place: str
) -> None:
    trace = tmp_path / "trace"
    named = {"url": repository.url, "revision": "main", place: word.format(trace)}
    done = run(init_container(**named), tmp_path / "pod")
    assert done.returncode != 0
    assert not trace.exists() and list((tmp_path / "pod" / "code").iterdir()) == []


def test_a_revision_that_is_not_there_fails_and_says_so(
    repository: Repository, tmp_path: Path
) -> None:
    done = run(init_container(url=repository.url, revision="nowhere"), tmp_path / "pod")
    assert done.returncode != 0 and "nowhere" in done.stderr


def test_a_container_that_is_started_again_fetches_again(
    repository: Repository, tmp_path: Path
) -> None:
    container = init_container(url=repository.url, revision="main")
    assert run(container, tmp_path / "pod").returncode == 0
    again = run(container, tmp_path / "pod")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("word", ["pa$$ 'word'", r"a\tb\\c 'd' $e", "-n", r"\c%s"])
def test_a_password_is_a_reference_and_git_asks_for_it(
    repository: Repository, tmp_path: Path, word: str
) -> None:
    container = init_container(url=repository.url, revision="main", secretName="login")
    env = {each["name"]: each for each in container["env"]}
    for variable, key in (("GIT_USERNAME", "username"), ("GIT_PASSWORD", "password")):
        reference = {"secretKeyRef": {"name": "login", "key": key}}
        assert env[variable] == {"name": variable, "valueFrom": reference}
    assert run(container, tmp_path / "pod").returncode == 0
    program = tmp_path / "pod" / "ask-pass"
    secrets = {"GIT_USERNAME": f"me{word}", "GIT_PASSWORD": word}
    said = [
        subprocess.run([program, prompt], env=secrets, capture_output=True, text=True).stdout
        for prompt in ("Username for 'https://example.com': ", "Password for 'https://me': ")
    ]
    assert said == [f"me{word}\n", f"{word}\n"]
    assert env["GIT_ASKPASS"]["value"] == "/tmp/ask-pass"
    assert env["GIT_TERMINAL_PROMPT"]["value"] == "0"


def test_code_that_is_not_from_git_needs_no_container() -> None:
    for code in ({"configMap": {"name": "mine"}}, None):
        document = manifest()
        document["spec"] |= {} if code is None else {"code": code}
        job = RLHFJob.model_validate(document)
        assert code_init_containers(job, PodResources(), {}) == []

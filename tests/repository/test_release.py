"""A release: its workflow, its version and its changelog."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..cluster.programs import built
from .tracked_files import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
SCRIPTS = ROOT / "tools" / "release"
TAG = re.compile(r"rlhf-(?:runtime|operator):(\d+\.\d+\.\d+)")


def workflow() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return document


def run(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_the_linter_of_workflows_finds_nothing() -> None:
    done = run(str(built("actionlint")), "-no-color", str(WORKFLOW))
    assert done.returncode == 0, done.stdout


def test_every_image_is_released_checked_and_signed() -> None:
    job = workflow()["jobs"]["images"]
    images = {entry["image"] for entry in job["strategy"]["matrix"]["include"]}
    (allowed,) = re.findall(r"allowed: (.*)\"", (ROOT / "images" / "build.sh").read_text())
    assert images == set(allowed.split(", "))
    steps = "\n".join(step.get("run", "") for step in job["steps"])
    assert "images/check_content.py" in steps
    assert "cosign sign" in steps and "syft scan" in steps


def test_nothing_is_published_before_the_checks_have_passed() -> None:
    jobs = workflow()["jobs"]
    for name in ("images", "chart", "wheel", "release"):
        needed, todo = set[str](), [name]
        while todo:
            before = jobs[todo.pop()].get("needs", [])
            before = [before] if isinstance(before, str) else before
            todo += [each for each in before if each not in needed]
            needed |= set(before)
        assert {"version", "checks"} <= needed, name


def test_jobs_may_write_nothing_but_what_they_name() -> None:
    document = workflow()
    assert document["permissions"] == {"contents": "read"}
    writers = [
        name
        for name, job in document["jobs"].items()
        if job.get("permissions", {}).get("contents") == "write"
    ]
    assert writers == ["release"]


def test_a_tag_has_to_be_the_version() -> None:
    version = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[0]
    done = run("bash", str(SCRIPTS / "check_tag.sh"), f"v{version}")
    assert (done.returncode, done.stdout) == (0, f"{version}\n")
    for tag in ("v999.0.0", version, ""):
        done = run("bash", str(SCRIPTS / "check_tag.sh"), tag)
        assert done.returncode == 2 and f"allowed v{version}" in done.stderr


def test_image_tags_everywhere_are_the_version() -> None:
    version = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[0]
    listed = run(
        "git", "grep", "--line-number", "--extended-regexp", "rlhf-(runtime|operator):[0-9]"
    )
    assert listed.stdout
    for line in listed.stdout.splitlines():
        assert set(TAG.findall(line)) <= {version}, f"{line}: run `make generate`"


def test_the_changelog_has_the_titles_since_the_last_release(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        done = run("git", "-c", "user.name=a", "-c", "user.email=a@b", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr

    def commit(title: str) -> None:
        git("commit", "--quiet", "--allow-empty", "--message", title)

    script = str(SCRIPTS / "changelog.sh")
    git("init", "--quiet", "--initial-branch=main")
    commit("First")
    git("tag", "v0.1.0")
    assert run("bash", script, "v0.1.0", folder=tmp_path).stdout == "## 0.1.0\n\n- First\n"
    commit("Second\n\nWith a text.")
    commit("Third")
    git("tag", "v0.2.0")
    commit("Later")
    assert run("bash", script, "v0.2.0", folder=tmp_path).stdout == (
        "## 0.2.0\n\nChanges since 0.1.0:\n\n- Second\n- Third\n"
    )

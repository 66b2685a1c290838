"""Packages of code.requirements, in all processes of a real run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_cli.packages.installation import cache_folder
from rlhf_cli.packages.lock import read_lock

from ..rlhf_cli.packages.wheels import Index, lock_of_words
from .cli import run
from .manifests import example
from .records import records, step_metrics

pytestmark = pytest.mark.ray

OURS = ("yaml.py", "numpy.py", "aiohttp.py", "rlhf_runtime.py")
"""Modules of the environment that its processes import."""


@pytest.fixture
def index(scratch: Path) -> Iterator[Index]:
    """An index with a package that would replace modules of ours; nothing of it is left behind."""
    made = Index(scratch / "index")
    wheel = made.add_words("1.0", others={name: "raise ImportError('ours')" for name in OURS})
    yield made
    # A cache of its own would need variables that keep workers from being forked like the others.
    shutil.rmtree(cache_folder() / lock_of_words("1.0", wheel).digest, ignore_errors=True)


def test_a_verifier_and_an_environment_import_them_and_they_replace_no_module_of_ours(
    scratch: Path, index: Index
) -> None:
    manifest = example(
        "01",
        scratch / "packages.yaml",
        {
            "code": {"requirements": ["tiny-words"]},
            "rewards": [
                {"name": "digits", "function": {"entrypoint": "packaged:digits"}},
                {"name": "word", "environment": {}},
            ],
            "rollout": {
                "samplesPerPrompt": 2,
                "maxPromptTokens": 16,
                "environment": {"entrypoint": "packaged:Speaker", "limits": {"turns": 2}},
            },
            "data": {"evaluation": None},
            "schedule": {"steps": 1, "promptsPerStep": 4, "warmStart": None},
        },
    )
    finished = run(manifest, scratch / "packages", "--devices", 1, **index.variables)
    assert finished.code == 0, finished.output
    assert "installed 1 package of code.requirements" in finished.output
    (metrics,) = step_metrics(finished.folder)
    assert metrics["reward/word"] == 2.0 and metrics["reward/digits"] > 0
    (started,) = records(finished.folder, "run")
    assert started["packages"] == ["tiny-words==1.0"]
    assert "tiny-words==1.0" in (finished.folder / "report.html").read_text()
    lock = read_lock(finished.folder)
    assert lock is not None and [package.pin for package in lock.packages] == ["tiny-words==1.0"]

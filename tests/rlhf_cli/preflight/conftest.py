"""A model, a folder with code of one's own, and the checks of a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_api.spec.job import RLHFJob
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.manifests import annotate_lines
from rlhf_cli.preflight import CheckedJob, RunTarget, preflight
from rlhf_cli.user_code import user_code
from rlhf_planner.plan import pools_of
from rlhf_runtime.models.tiny_llama import write_tiny_llama
from rlhf_runtime.preflight.findings import THOROUGH, Limits

from .jobs import ENVIRONMENTS, VERIFIERS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_llama(folder, seed=0)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with code of one's own, in which commands are given."""
    (tmp_path / "addv.py").write_text(VERIFIERS)
    (tmp_path / "adders.py").write_text(ENVIRONMENTS)
    (tmp_path / "needy.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def check(place: Path) -> Callable[..., CheckedJob]:
    """A job's checks, with one call instead of a file of its own."""

    def of_file(file: Path, limits: Limits = THOROUGH, one_machine: bool = True) -> CheckedJob:
        job: RLHFJob
        (job,) = local_jobs(file)
        target = RunTarget(
            pools=lambda: pools_of(job),
            code=user_code(job),
            lines=lambda: annotate_lines(file, job),
            one_machine=one_machine,
        )
        with preflight(job, target, limits) as found:
            return found

    return of_file

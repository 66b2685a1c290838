"""Equal jobs have equal digests; whatever changes numbers changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.plan import Plan
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_planner.plan import local_pools, make_plan
from rlhf_runtime.journal import settings_digest
from rlhf_runtime.journal.settings_digest import code_digest, settings_of
from rlhf_runtime.python_path import NO_CODE, Packages, PythonPath

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml"


@pytest.fixture(scope="module")
def job() -> tuple[RLHFJobSpec, Plan]:
    (job,) = load_jobs(EXAMPLE.read_text(), str(EXAMPLE))
    return job.spec, make_plan(job, local_pools(job, 1))[1]


def changed(spec: RLHFJobSpec, section: str, **values: Any) -> RLHFJobSpec:
    return spec.model_copy(update={section: getattr(spec, section).model_copy(update=values)})


def test_the_same_command_has_the_same_digests(job: tuple[RLHFJobSpec, Plan]) -> None:
    spec, plan = job
    again = Plan.model_validate_json(plan.model_dump_json(by_alias=True))
    patient = changed(spec, "failure_policy", max_restarts=9)
    assert settings_of(spec, again, NO_CODE) == settings_of(spec, plan, NO_CODE)
    assert settings_of(patient, plan, NO_CODE) == settings_of(spec, plan, NO_CODE)


def test_manifest_plan_code_and_versions_count(
    job: tuple[RLHFJobSpec, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, plan = job
    (tmp_path / "verifier.py").write_text("A = 1")
    settings = [
        settings_of(spec, plan, NO_CODE),
        settings_of(changed(spec, "schedule", seed=7), plan, NO_CODE),
        settings_of(spec, plan.model_copy(update={"passes_ahead": plan.passes_ahead + 1}), NO_CODE),
        settings_of(spec, plan, PythonPath((str(tmp_path),))),
    ]
    monkeypatch.setattr(settings_digest, "version", lambda library: "0")
    settings.append(settings_of(spec, plan, NO_CODE))
    assert len({one.job for one in settings}) == len(settings)


def test_code_is_all_python_in_a_folder_and_its_packages(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    digests = [code_digest(PythonPath((str(tmp_path),)))]
    for name, text in (("a.py", "1"), ("package/b.py", "1"), ("package/b.py", "2"), ("c.py", "")):
        (tmp_path / name).write_text(text)
        digests.append(code_digest(PythonPath((str(tmp_path),))))
    assert len(set(digests)) == len(digests)
    (tmp_path / "rows.jsonl").write_text("{}")
    assert code_digest(PythonPath((str(tmp_path),))) == digests[-1]


def test_packages_for_the_code_count_by_their_digest_wherever_they_lie() -> None:
    paths = [NO_CODE]
    paths += [PythonPath((), Packages(folder, digest)) for folder in "ab" for digest in "12"]
    none, first, second, *elsewhere = map(code_digest, paths)
    assert len({none, first, second}) == 3 and elsewhere == [first, second]

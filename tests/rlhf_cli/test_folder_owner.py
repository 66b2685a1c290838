"""Whose a run's folder on a cluster is, and what another job may do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.spec.checkpoint import StartMode
from rlhf_cli.folder_owner import (
    FolderOwner,
    OwnerRecord,
    claim_folder,
    require_folder_of,
    will_continue,
)
from rlhf_runtime.errors import FolderOfAnotherJob, FolderUnusable

CONTINUE, FRESH = StartMode.CONTINUE, StartMode.FRESH
FIRST, SECOND = (FolderOwner(namespace="team", name="sort", uid=uid) for uid in ("u-1", "u-2"))


def files_of(folder: Path) -> dict[str, str]:
    """The files of a folder by their paths, without the owner's record."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "owner.json"
    }


def train(folder: Path, text: str) -> None:
    """What a run leaves."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-1").write_text(text)
    (folder / "metrics.jsonl").write_text(text)


OF_FIRST = {"checkpoints/step-1": "first", "metrics.jsonl": "first"}
AS_EARLIER = {f"earlier/1/{path}": text for path, text in OF_FIRST.items()}


def test_a_new_folder_is_the_first_jobs_and_stays_its_own(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert claim_folder(tmp_path, FIRST, FRESH) == ""
    train(tmp_path, "first")
    # A restart continues its own run, whatever the manifest says by now.
    for start in (FRESH, CONTINUE):
        assert will_continue(tmp_path, FIRST, start)
        assert claim_folder(tmp_path, FIRST, start) == ""
    assert files_of(tmp_path) == {".lock": ""} | OF_FIRST


@pytest.mark.parametrize(("namespace", "name"), [("team", "other"), ("others", "sort")])
@pytest.mark.parametrize("start", StartMode)
def test_another_jobs_folder_is_refused_and_stays_as_it_is(
    tmp_path: Path, namespace: str, name: str, start: StartMode
) -> None:
    claim_folder(tmp_path, FIRST, CONTINUE)
    train(tmp_path, "first")
    before = files_of(tmp_path), (tmp_path / "owner.json").read_text()
    other = FolderOwner(namespace=namespace, name=name, uid="u-1")
    with pytest.raises(FolderOfAnotherJob, match=f"got the job {namespace}/{name}, .*team/sort"):
        require_folder_of(tmp_path, other)
    with pytest.raises(FolderOfAnotherJob, match="another subPath") as raised:
        claim_folder(tmp_path, other, start)
    assert raised.value.exit_code is ExitCode.MANIFEST, "it is not started again"
    assert (files_of(tmp_path), (tmp_path / "owner.json").read_text()) == before


@pytest.mark.parametrize("recorded", [True, False], ids=["a job's", "nobody's"])
def test_a_later_job_of_the_name_continues_the_run_and_says_so_at_every_start(
    tmp_path: Path, recorded: bool
) -> None:
    if recorded:
        claim_folder(tmp_path, FIRST, CONTINUE)
    train(tmp_path, "first")
    text = claim_folder(tmp_path, SECOND, CONTINUE)
    former = "an earlier job of this name" if recorded else "a run without an owner"
    assert text == f"the folder had been used by {former}: this job continues that run"
    assert files_of(tmp_path) == OF_FIRST
    # The operator may not have read the first driver's report.
    assert claim_folder(tmp_path, SECOND, CONTINUE) == text


@pytest.mark.parametrize("recorded", [True, False], ids=["a job's", "nobody's"])
def test_a_fresh_start_puts_the_earlier_run_aside_once(tmp_path: Path, recorded: bool) -> None:
    if recorded:
        claim_folder(tmp_path, FIRST, CONTINUE)
    train(tmp_path, "first")
    assert not will_continue(tmp_path, SECOND, FRESH)
    text = claim_folder(tmp_path, SECOND, FRESH)
    assert "starts from the beginning" in text and text.endswith("put aside in earlier/1")
    assert files_of(tmp_path) == AS_EARLIER
    train(tmp_path, "second")
    own = {"checkpoints/step-1": "second", "metrics.jsonl": "second"}
    assert claim_folder(tmp_path, SECOND, FRESH) == text
    assert files_of(tmp_path) == own | AS_EARLIER
    third = SECOND.model_copy(update={"uid": "u-3"})
    assert claim_folder(tmp_path, third, FRESH).endswith("earlier/2")
    again = {f"earlier/2/{path}": text for path, text in own.items()}
    assert files_of(tmp_path) == AS_EARLIER | again


@pytest.mark.parametrize("next_job", [SECOND, SECOND.model_copy(update={"uid": "u-3"})])
@pytest.mark.parametrize("start", StartMode)
def test_a_move_that_was_cut_off_is_finished_by_the_next_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_job: FolderOwner, start: StartMode
) -> None:
    claim_folder(tmp_path, FIRST, CONTINUE)
    train(tmp_path, "first")
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if self.name == "metrics.jsonl":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        claim_folder(tmp_path, SECOND, FRESH)
    assert (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "checkpoints").exists()
    assert not will_continue(tmp_path, next_job, start), "what is left is the earlier run's"
    claim_folder(tmp_path, next_job, start)
    assert files_of(tmp_path) == AS_EARLIER


def test_a_folder_that_was_given_away_is_taken_over(tmp_path: Path) -> None:
    claim_folder(tmp_path, FIRST, CONTINUE)
    train(tmp_path, "first")
    (tmp_path / "owner.json").unlink()
    other = FolderOwner(namespace="team", name="other", uid="u-9")
    assert "a run without an owner" in claim_folder(tmp_path, other, CONTINUE)
    with pytest.raises(FolderOfAnotherJob):
        require_folder_of(tmp_path, FIRST)


def test_a_damaged_record_is_nobodys_permission(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text("{")
    with pytest.raises(FolderUnusable, match=r"no record of an owner in .*owner\.json"):
        claim_folder(tmp_path, FIRST, CONTINUE)


def test_the_record_of_a_later_release_is_read(tmp_path: Path) -> None:
    record = OwnerRecord(owner=FIRST).model_dump_json()
    (tmp_path / "owner.json").write_text(record.replace("{", '{"more": 1, ', 1))
    assert claim_folder(tmp_path, FIRST, CONTINUE) == ""

"""The owner of a run's folder on a cluster: the job whose drivers may write there.

The folder records its owner in owner.json. A folder without that file is new, or of `rlhf run` or
an earlier release.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rlhf_api.spec.checkpoint import StartMode
from rlhf_cli.earlier_run import move_files
from rlhf_runtime.controller.run_lock import LOCK
from rlhf_runtime.durable_files import write_durably
from rlhf_runtime.errors import FolderOfAnotherJob, FolderUnusable
from rlhf_runtime.telemetry.errors import CannotRecord

OWNER = "owner.json"
"""The file with the owner's record."""
EARLIER = "earlier"
"""Folder with the runs that were put aside. It is inside of the run's folder, as that is all that a
pod sees of the volume."""
PACKAGES = "packages"
"""Folder with installed packages of `code.requirements`, for all runs in the folder."""
UNFINISHED = f"{OWNER}.new"
"""The record while it is written."""
NOT_OF_A_RUN = {LOCK, OWNER, UNFINISHED, EARLIER, PACKAGES}
"""Entries of a folder that stay when its run is put aside."""


class FolderOwner(BaseModel):
    """A job, as the owner of a folder."""

    model_config = ConfigDict(frozen=True)

    namespace: str
    name: str
    uid: str | None = None
    """Uid of the RLHFJob. None: the driver does not know it."""


class OwnerRecord(BaseModel):
    """The content of owner.json. Fields of a later release are ignored."""

    model_config = ConfigDict(frozen=True)

    owner: FolderOwner
    takeover: str = ""
    """Sentence for people about the takeover of the folder. Empty: it was new."""
    moving_to: str | None = None
    """Folder to which an earlier run's files are being moved. None: they are not."""


def require_folder_of(folder: Path, owner: FolderOwner) -> None:
    """Check that no other job owns the folder. Writes nothing.

    Raises:
        FolderOfAnotherJob: a job of another name or namespace does.
        FolderUnusable: the owner's record cannot be read.
    """
    record = _read(folder)
    if record is None:
        return
    former = record.owner
    if (former.namespace, former.name) != (owner.namespace, owner.name):
        raise FolderOfAnotherJob(
            f"the run's folder belongs to another job: got the job {_job_text(owner)}, allowed the "
            f"job {_job_text(former)}; choose another subPath of checkpoint.storage."
            f"persistentVolumeClaim, or give the job that name. To give the folder away, delete "
            f"{OWNER} in it"
        )


def will_continue(folder: Path, owner: FolderOwner, start: StartMode) -> bool:
    """Return True if a claim of the folder would continue the run in it. Writes nothing.

    Args:
        start: use of another incarnation's run.

    Raises:
        FolderOfAnotherJob: another job owns the folder.
        FolderUnusable: the owner's record cannot be read.
    """
    require_folder_of(folder, owner)
    record = _read(folder)
    if record is not None and record.moving_to is not None:
        return False
    return start is StartMode.CONTINUE or (record is not None and record.owner == owner)


def claim_folder(folder: Path, owner: FolderOwner, start: StartMode) -> str:
    """Make a job the owner of a folder, which this process has locked.

    Args:
        start: use of another incarnation's run; the owner's own run is always continued.

    Returns:
        How the owner has taken over the folder, for people. Empty: it was new.

    Raises:
        FolderOfAnotherJob: another job owns it.
        FolderUnusable: the owner's record cannot be read, or an earlier run cannot be moved.
        CannotRecord: the folder cannot be written.
    """
    require_folder_of(folder, owner)
    record = _read(folder)
    if record is not None and record.moving_to is not None:
        # A driver was killed while it moved files.
        record = _put_aside(folder, record)
    if record is not None and record.owner == owner:
        return record.takeover
    if not _has_files(folder):
        _write(folder, OwnerRecord(owner=owner))
        return ""
    former = "a run without an owner" if record is None else "an earlier job of this name"
    if start is StartMode.CONTINUE:
        text = f"the folder had been used by {former}: this job continues that run"
        _write(folder, OwnerRecord(owner=owner, takeover=text))
        return text
    aside = _free_name(folder)
    text = (
        f"the folder had been used by {former}: this job starts from the beginning, and that run "
        f"was put aside in {aside}"
    )
    # The record comes first: a restart of this job must move the rest, and nothing of its own run.
    _put_aside(folder, OwnerRecord(owner=owner, takeover=text, moving_to=aside))
    return text


def _job_text(owner: FolderOwner) -> str:
    return "/".join(filter(None, (owner.namespace, owner.name)))


def _has_files(folder: Path) -> bool:
    return any(entry.name not in NOT_OF_A_RUN for entry in folder.iterdir())


def _free_name(folder: Path) -> str:
    names = (f"{EARLIER}/{number}" for number in count(1))
    return next(name for name in names if not (folder / name).exists())


def _put_aside(folder: Path, record: OwnerRecord) -> OwnerRecord:
    """Move a run's files to the folder in the record; return the record without it."""
    assert record.moving_to is not None
    _write(folder, record)
    move_files(folder, folder / record.moving_to, NOT_OF_A_RUN, "run")
    done = record.model_copy(update={"moving_to": None})
    _write(folder, done)
    return done


def _read(folder: Path) -> OwnerRecord | None:
    """Return the record of a folder. None: it has none."""
    path = folder / OWNER
    try:
        return OwnerRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "no record of an owner"
        raise FolderUnusable(
            f"the owner of the run's folder cannot be read: got {cause} in {path}; correct its "
            "permissions, or delete the file to give the folder to this job"
        ) from error


def _write(folder: Path, record: OwnerRecord) -> None:
    try:
        write_durably(folder / OWNER, record.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise CannotRecord(
            f"the owner of the run's folder cannot be recorded: got {type(error).__name__}: "
            f"{error} in {folder}; free space there, or correct its permissions"
        ) from error

"""Folders of environment servers whose owners are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rlhf_runtime.environments.server_handle import FOLDER_PREFIX, remove_stale_folders


def test_only_folders_of_ended_owners_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living = tmp_path / f"{FOLDER_PREFIX}{os.getpid()}-abc"
    others = [living, tmp_path / f"{FOLDER_PREFIX}x-abc", tmp_path / "else"]
    stale = tmp_path / f"{FOLDER_PREFIX}{ended.pid}-abc"
    for folder in (*others, stale):
        (folder / "inner").mkdir(parents=True)
    remove_stale_folders(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)

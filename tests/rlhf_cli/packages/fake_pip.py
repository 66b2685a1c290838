"""An index whose newest version a test sets, and a pip that writes one module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rlhf_cli.packages import installation
from rlhf_cli.packages.lock import LockedPackage, PackageLock, this_python
from rlhf_runtime.hooks import Hook


class FakePip:
    """Stands for resolving and for pip.

    newest: version that resolving takes.
    """

    def __init__(self) -> None:
        self.newest = "1.0"

    def used_by(self, monkeypatch: pytest.MonkeyPatch) -> FakePip:
        monkeypatch.setattr(installation, "resolve", self.resolve)
        monkeypatch.setattr(installation, "run_pip", self.run)
        return self

    def resolve(
        self, requirements: Sequence[str], installed: Mapping[str, str], keep_alive: Hook
    ) -> PackageLock:
        keep_alive()
        package = LockedPackage(name="tiny-words", version=self.newest, hashes=("sha256:0",))
        return PackageLock(
            requirements=tuple(requirements), python=this_python(), packages=(package,)
        )

    def run(self, arguments: Sequence[str], folder: Path, keep_alive: Hook) -> None:
        keep_alive()
        target = Path(arguments[arguments.index("--target") + 1])
        line = Path(arguments[arguments.index("--requirement") + 1]).read_text()
        (target / "tiny_words.py").write_text(f"LINE = {line!r}\n")

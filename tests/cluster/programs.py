"""Programs that tools/devcluster/build.sh builds from pinned sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .devcluster import SCRIPTS
from .session import skip_or_fail


def built(name: str) -> Path:
    """Where a program is; without it the test is skipped, and fails in CI."""
    script = 'source "$0/lib/settings.sh" && source "$0/lib/binaries.sh" && binary "$1"'
    found = subprocess.run(
        ["bash", "-c", script, str(SCRIPTS), name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if found.returncode != 0:
        skip_or_fail(f"{name} is not built: run `tools/devcluster/build.sh {name}` once")
    return Path(found.stdout.strip())

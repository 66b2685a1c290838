"""What trackers know of a run: its settings, and the run on their side that it goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.changes import spec_document
from rlhf_api.spec.job import RLHFJob, RLHFJobSpec

# Their values may be secret, or are of no use for a comparison.
_LEFT_OUT = frozenset({"env", "headers", "graph"})
IDS_FILE = "trackers.json"

Setting = str | int | float | bool


@dataclass(frozen=True)
class TrackedRun:
    """A run, as trackers see it."""

    name: str
    """The job's name."""
    folder: Path
    """The run's folder."""
    settings: Mapping[str, Setting]
    """The manifest's settings with their defaults, by dotted names."""

    @staticmethod
    def of(job: RLHFJob, folder: Path) -> TrackedRun:
        """Return the run of a job in a folder."""
        return TrackedRun(job.name, folder, flat_settings(job.spec))

    def known_id(self, tracker: str) -> str | None:
        """Return the id of the run that a tracker began for this one; None if it began none.

        Args:
            tracker: its name, and the project.
        """
        run_id = self._ids().get(tracker)
        return run_id if isinstance(run_id, str) else None

    def remember_id(self, tracker: str, run_id: str) -> None:
        """Store the id of a tracker's run, with which a later start goes on."""
        ids = {**self._ids(), tracker: run_id}
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{IDS_FILE}.new"
        temporary.write_text(json.dumps(ids, indent=2) + "\n")
        temporary.replace(self.folder / IDS_FILE)

    def _ids(self) -> Mapping[str, Any]:
        try:
            ids = json.loads((self.folder / IDS_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return ids if isinstance(ids, dict) else {}


def flat_settings(spec: RLHFJobSpec) -> dict[str, Setting]:
    """Return the settings of a spec with their defaults, by dotted names, without those that may be
    secret."""
    return dict(_flat(spec_document(spec), ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Setting]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _LEFT_OUT:
                yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    elif value is not None:
        yield name, value

"""`rlhf top`: who holds GPUs, and which of them train."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from rlhf_api.on_cluster import OWNER_LABEL, QUEUE_LABEL
from rlhf_cli.cluster.jobs import Job, read_job
from rlhf_cli.cluster.top_table import owner, top_table
from rlhf_cli.cluster.watching import TopDisplay
from rlhf_kube.kinds import Kind

from ...rlhf_kube.fake_kube import FakeKube
from .objects import MADE, RUNNING, submission

NOW = datetime(2026, 1, 2, 3, 30, tzinfo=UTC)


def job(
    name: str, status: dict[str, Any], labels: dict[str, str] | None = None, **metadata: Any
) -> Job:
    document = submission(name, "team")
    made = {"uid": name, "creationTimestamp": MADE, "labels": labels or {}, **metadata}
    document["metadata"] |= made
    return read_job({**document, "status": status})


TRAINS = job(
    "sort",
    RUNNING | {"gpus": 16, "busyGpus": 16, "gpuSeconds": 7200, "idleGpuSeconds": 300},
    {QUEUE_LABEL: "research", OWNER_LABEL: "ada"},
)
STARTS = job("math", {"phase": "Provisioning", "gpus": 8, "gpuSeconds": 10, "idleGpuSeconds": 10})
WAITS = job("code", {"phase": "Pending"}, {QUEUE_LABEL: "research"})
ENDED = job("old", {"phase": "Succeeded"})
KEPT = job("kept", {"phase": "Failed", "gpus": 4})


def test_jobs_are_listed_by_their_gpus_with_totals() -> None:
    table = top_table(
        [WAITS, STARTS, ENDED, KEPT, TRAINS], NOW, all_jobs=False, with_namespaces=False
    )
    assert table == (
        "GPUs: 28 held, 16 busy; jobs: 1 running, 2 not running\n"
        "NAME   PHASE          STEP      GPUS   BUSY   IDLE   QUEUE      OWNER   AGE\n"
        "sort   Running        120/500   16     16     4%     research   ada     30m\n"
        "math   Provisioning             8      0      100%                      30m\n"
        "kept   Failed                   4      0                                30m\n"
        "code   Pending                  0      0             research           30m\n"
    )


def test_ended_jobs_and_namespaces_are_shown_on_request() -> None:
    lines = top_table([ENDED], NOW, all_jobs=True, with_namespaces=True).splitlines()
    assert lines[1].split()[:2] == ["NAMESPACE", "NAME"]
    assert lines[2].split()[:3] == ["team", "old", "Succeeded"]
    assert len(top_table([ENDED], NOW, all_jobs=False, with_namespaces=True).splitlines()) == 2


def test_the_creator_owns_a_job_without_a_label() -> None:
    references = [{"kind": "Workflow", "name": "nightly"}]
    assert owner(job("sort", {}, ownerReferences=references)) == "Workflow/nightly"
    assert owner(job("sort", {}, {OWNER_LABEL: "ada"}, ownerReferences=references)) == "ada"
    assert owner(job("sort", {})) == ""


def test_the_live_table_shows_the_newest_state() -> None:
    drawing = TopDisplay(all_jobs=False, with_namespaces=False)
    for shown in (WAITS, TRAINS):
        drawing.show({("team", "sort"): shown})
    console = Console(file=io.StringIO(), width=200)
    console.print(drawing.render())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "GPUs: 16 held, 16 busy" in text and "code" not in text


def test_outside_of_a_terminal_the_table_is_printed_once(fake: FakeKube) -> None:
    from .test_commands import rlhf

    fake.create(submission("sort", "team"))
    fake.set_status(Kind.JOB, "team", "sort", RUNNING | {"busyGpus": 8})
    lines = rlhf("top").stdout.splitlines()
    assert lines[0] == "GPUs: 8 held, 8 busy; jobs: 1 running, 0 not running"
    assert lines[2].split()[:5] == ["sort", "Running", "120/500", "8", "8"]
    assert rlhf("top", "-A").stdout.splitlines()[2].split()[0] == "team"

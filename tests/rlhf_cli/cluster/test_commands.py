"""The commands from end to end, at a cluster in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from rlhf_cli.app import app
from rlhf_cli.cluster.errors import NothingToRead, TransferFailed
from rlhf_cli.cluster.opening import ReadOptions
from rlhf_cli.commands.logs import print_log
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest

from ...rlhf_kube.fake_kube import Document, FakeKube
from .objects import RUNNING, SPEC, condition, event, pod, submission

CLAIM = {"storage": {"persistentVolumeClaim": {"claimName": "disk"}}}
IMAGE = {"runtime": "registry/rlhf:1"}
RAY = "/tmp/ray/session_latest/logs"
ENDED = {"observedGeneration": 1, "phase": "Succeeded"}


def rlhf(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


def manifest(*names: str, **spec: Any) -> str:
    documents = [submission(name, "team", **spec) for name in names]
    for document in documents:
        del document["metadata"]["namespace"]
    return yaml.safe_dump_all(documents)


def running(fake: FakeKube, status: Manifest = RUNNING, **spec: Any) -> None:
    """The job sort, in a state."""
    fake.create(submission("sort", "team", **spec))
    fake.set_status(Kind.JOB, "team", "sort", status)


def becomes(fake: FakeKube, *statuses: Manifest, name: str = "sort") -> None:
    """What a watch will see one after the other."""
    for status in statuses:
        fake.script.append(partial(fake.set_status, Kind.JOB, "team", name, status))


def step(number: int) -> Document:
    return RUNNING | {"progress": RUNNING["progress"] | {"step": number}}


def test_jobs_of_a_file_are_submitted_and_told(fake: FakeKube) -> None:
    result = rlhf("submit", "-", stdin=manifest("one", "two"))
    assert result.exit_code == 0
    assert result.stdout == "rlhfjob/one created in team\nrlhfjob/two created in team\n"
    assert result.stderr == (
        "Follow it: rlhf status one -n team --watch\nFollow it: rlhf status two -n team --watch\n"
    )
    assert fake.get(Kind.JOB, "team", "one")["spec"] == SPEC  # no defaults were added


def test_submitting_again_says_whether_anything_changed(fake: FakeKube) -> None:
    rlhf("submit", "-", stdin=manifest("one"))
    assert rlhf("submit", "-", stdin=manifest("one")).stdout == "rlhfjob/one unchanged in team\n"
    changed = rlhf("submit", "-", "--set", "spec.suspend=true", stdin=manifest("one"))
    assert changed.stdout == "rlhfjob/one changed in team\n"
    assert fake.get(Kind.JOB, "team", "one")["spec"]["suspend"] is True


def test_a_dry_run_changes_nothing(fake: FakeKube) -> None:
    result = rlhf("submit", "-", "--dry-run", stdin=manifest("one"))
    assert result.stdout == "rlhfjob/one created in team (--dry-run: nothing was stored)\n"
    assert result.stderr == ""
    assert not fake.list(Kind.JOB, None)


def test_what_validate_refuses_never_reaches_the_cluster(fake: FakeKube) -> None:
    text = manifest("one") + "---\n" + manifest("two").replace("steps: 150", "steps: 0")
    result = rlhf("submit", "-", stdin=text)
    assert result.exit_code == 2 and "spec.schedule.steps: too small" in result.stderr
    assert not fake.list(Kind.JOB, None)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"code": {"local": "mine"}}, "spec.code.local: a folder of this machine"),
        (
            {"checkpoint": {"storage": {"uri": "s3://bucket/sort"}}},
            "spec.checkpoint.storage.uri: on a cluster",
        ),
    ],
    ids=["code-of-this-machine", "storage-without-a-volume"],
)
def test_what_no_cluster_can_do_is_refused(fake: FakeKube, part: dict[str, Any], says: str) -> None:
    result = rlhf("submit", "-", stdin=manifest("one", **part))
    assert result.exit_code == 2 and says in result.stderr
    assert not fake.list(Kind.JOB, None)


def test_what_may_not_work_on_a_cluster_is_warned_about(fake: FakeKube) -> None:
    function = {"function": {"entrypoint": "mine.reward:score"}}
    parts = [{"paths": ["/a.jsonl", "b.jsonl"]}]
    data = {"train": {"path": "data/train.jsonl"}, "evaluation": {"sources": parts}}
    text = manifest("one", rewards=[function], data=data)
    result = rlhf("submit", "-", "--dry-run", stdin=text)
    assert result.exit_code == 0
    told = [line.partition("; ")[0] for line in result.stderr.splitlines()]
    assert told == [
        "one: spec.data.train.path: data/train.jsonl is relative",
        "one: spec.data.evaluation.sources[0].paths[1]: b.jsonl is relative",
        "one: mine.reward:score must be in the image, because there is no spec.code",
    ]


def test_two_namespaces_at_once_are_refused(fake: FakeKube) -> None:
    text = yaml.safe_dump(submission("one", "theirs"))
    result = rlhf("submit", "-", "-n", "team", stdin=text)
    assert result.exit_code == 2 and "got theirs, allowed team" in result.stderr
    assert rlhf("submit", "-", stdin=text).stdout == "rlhfjob/one created in theirs\n"


def test_a_cluster_that_is_too_old_is_refused(fake: FakeKube) -> None:
    fake.server_version = (1, 28)
    result = rlhf("submit", "-", stdin=manifest("one"))
    assert result.exit_code == 2
    assert "got Kubernetes 1.28, allowed 1.29 and later" in result.stderr


def test_a_suspended_job_can_be_submitted_again_with_the_other_word(fake: FakeKube) -> None:
    rlhf("submit", "-", stdin=manifest("sort", suspend=False))
    rlhf("suspend", "sort")
    result = rlhf("submit", "-", stdin=manifest("sort", suspend=False))
    assert result.stdout == "rlhfjob/sort changed in team\n"


def test_waiting_ends_as_the_job_does(fake: FakeKube) -> None:
    failed = {"driver": RUNNING["driver"] | {"exitCode": 3}, "reason": "InvalidReward"}
    becomes(fake, step(1), step(2), RUNNING | {"phase": "Failed"} | failed)
    result = rlhf("submit", "-", "--wait", stdin=manifest("sort"))
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    assert lines[1] == "sort phase=Pending" and lines[2].startswith("sort phase=Running step=1/500")
    assert lines[-1].startswith("sort phase=Failed reason=InvalidReward")


def test_waiting_for_several_jobs_ends_with_the_last(fake: FakeKube) -> None:
    becomes(fake, ENDED | {"phase": "Failed"}, name="one")
    becomes(fake, ENDED, name="two")
    result = rlhf("submit", "-", "--wait", stdin=manifest("one", "two"))
    assert result.exit_code == 4 and not fake.script


def test_of_several_jobs_the_first_of_the_file_that_failed_counts(fake: FakeKube) -> None:
    fault = {"phase": "Failed", "driver": RUNNING["driver"] | {"exitCode": 3}}
    becomes(fake, RUNNING | fault, name="zebra")
    becomes(fake, ENDED | {"phase": "Failed"}, name="ape")
    assert rlhf("submit", "-", "--wait", stdin=manifest("zebra", "ape")).exit_code == 3


def test_a_watched_job_that_is_deleted_is_told(fake: FakeKube) -> None:
    running(fake)
    fake.script.append(partial(fake.delete, Kind.JOB, "team", "sort"))
    result = rlhf("status", "sort", "--watch")
    assert result.exit_code == 4
    assert result.stdout.splitlines()[-1] == "sort phase=Deleted"
    assert "JobDeleted: the job was deleted before it ended" in result.stderr


def test_a_watched_job_that_cannot_go_on_ends_the_watch(fake: FakeKube) -> None:
    running(fake)
    becomes(fake, RUNNING | {"conditions": [condition("Stalled", "True", "DoesNotFit", "9 of 8")]})
    assert rlhf("status", "sort", "--watch").exit_code == 2


def test_the_status_of_all_jobs_is_a_table(fake: FakeKube) -> None:
    assert "No jobs in namespace team." in rlhf("status").stderr
    running(fake)
    fake.create(submission("other", "theirs"))
    assert [line.split()[:3] for line in rlhf("status").stdout.splitlines()] == [
        ["NAME", "PHASE", "STEP"],
        ["sort", "Running", "120/500"],
    ]
    spaces = [line.split()[:2] for line in rlhf("status", "-A").stdout.splitlines()]
    assert spaces[1:] == [["team", "sort"], ["theirs", "other"]]


def test_programs_get_the_status_as_data(fake: FakeKube) -> None:
    running(fake)
    one = json.loads(rlhf("status", "sort", "-o", "json").stdout)
    assert one["status"]["progress"]["step"] == 120
    assert yaml.safe_load(rlhf("status", "-o", "yaml").stdout)["items"] == [one]
    assert rlhf("status", "-o", "name").stdout == "rlhfjob.rlhf-operator.dev/sort\n"
    name = rlhf("status", "rlhfjob.rlhf-operator.dev/sort", "-o", "name")
    assert name.stdout == "rlhfjob.rlhf-operator.dev/sort\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("sortt",), "did you mean sort?"),
        (("another",), "allowed sort"),
        (("there",), "it is in namespace theirs: give -n theirs"),
    ],
)
def test_a_name_that_does_not_exist_is_met_with_what_does(
    fake: FakeKube, words: tuple[str, ...], says: str
) -> None:
    running(fake)
    fake.create(submission("there", "theirs"))
    for command in ("status", "describe", "logs", "fetch", "suspend", "resume", "cancel"):
        result = rlhf(command, *words)
        assert result.exit_code == 2 and says in result.stderr, command


@pytest.mark.parametrize(
    "words",
    [
        ("status", "sort", "-A"),
        ("status", "--watch", "-o", "json"),
        ("logs", "sort", "--rank", "0", "--driver"),
        ("logs", "sort", "--events", "--follow"),
        ("fetch", "sort", "weights"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    fake: FakeKube, words: tuple[str, ...]
) -> None:
    running(fake)
    assert rlhf(*words).exit_code == 2


def test_a_job_is_suspended_and_resumed(fake: FakeKube) -> None:
    running(fake)
    becomes(fake, RUNNING, {"phase": "Suspended", "observedGeneration": 2})
    result = rlhf("suspend", "sort", "--wait")
    assert result.exit_code == 0 and not fake.script
    assert "saves, releases 8 GPUs and waits" in result.stdout
    assert fake.get(Kind.JOB, "team", "sort")["spec"]["suspend"] is True
    assert "is suspended already" in rlhf("suspend", "sort").stdout
    assert "starts from the beginning" in rlhf("resume", "sort").stdout
    assert fake.get(Kind.JOB, "team", "sort")["spec"]["suspend"] is False
    assert (
        "has no suspension to end. It waits because of its queue" in rlhf("resume", "sort").stdout
    )


def test_a_job_that_has_ended_is_neither_suspended_nor_resumed(fake: FakeKube) -> None:
    running(fake, ENDED)
    for command in ("suspend", "resume"):
        result = rlhf(command, "sort")
        assert result.exit_code == 2 and "JobHasEnded" in result.stderr


def test_a_job_is_deleted_only_if_somebody_says_so(fake: FakeKube) -> None:
    running(fake)
    refused = rlhf("cancel", "sort")
    assert refused.exit_code == 2 and "--yes" in refused.stderr and not fake.deleted
    assert rlhf("cancel", "sort", stdin="n\n").exit_code == 2 and not fake.deleted


@pytest.mark.parametrize(("words", "stdin"), [(["--yes"], None), ([], "y\n")])
def test_somebody_says_so_by_an_option_or_an_answer(
    fake: FakeKube, words: list[str], stdin: str | None
) -> None:
    running(fake)
    assert rlhf("cancel", "sort", *words, stdin=stdin).exit_code == 0
    assert fake.deleted == ["rlhfjobs/sort"]


def test_all_about_a_job_is_described(fake: FakeKube) -> None:
    running(fake)
    meta = {"name": "sort-1", "namespace": "team"}
    fake.create({**Kind.CLUSTER.header, "metadata": meta, "spec": {}})
    status = {"desiredWorkerReplicas": 4, "readyWorkerReplicas": 3}
    fake.set_status(Kind.CLUSTER, "team", "sort-1", status)
    worker = pod("sort-1-a-worker-x", "team", {"ray.io/cluster": "sort-1"}, running=False)
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    worker["status"]["containerStatuses"][0]["state"] = waiting
    fake.create(worker)
    fake.create(pod("sort-2-head-x", "team", {"ray.io/cluster": "sort-2"}))
    far = "2126-01-02T03:10:00Z"
    fake.create(event("Pod", "sort-1-a-worker-x", "FailedMount", "no disk", last=far))
    text = rlhf("describe", "sort").stdout
    assert "RayCluster sort-1: 3 of 4 workers ready" in text
    assert "  container ray: ErrImagePull: no such image" in text
    assert "FailedMount" in text and "sort-2-head-x" not in text
    assert "no disk" in rlhf("logs", "sort", "--events").stdout


def with_head(fake: FakeKube, tmp_path: Path, **logs: str) -> Path:
    """A living head that sees a job's folder; the folder."""
    labels = {"ray.io/cluster": "sort-1", "ray.io/node-type": "head"}
    fake.create(pod("sort-1-head-x", "team", labels))
    return with_folder(fake, tmp_path, "sort-1-head-x", **logs)


def with_folder(fake: FakeKube, tmp_path: Path, name: str, **logs: str) -> Path:
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True, exist_ok=True)
    (tmp_path / "ray").mkdir(exist_ok=True)
    for log, text in logs.items():
        (run / "logs" / f"{log.replace('_', '-')}.log").write_text(text)
    fake.folders[name] = {"/rlhf/run": run, RAY: tmp_path / "ray"}
    return run


def test_logs_come_from_the_head_while_it_lives(fake: FakeKube, tmp_path: Path) -> None:
    running(fake)
    with_head(fake, tmp_path, rank_0="a\nb\n", driver="old\n", reward="r\n")
    (tmp_path / "ray" / "job-driver-sort-1-0.log").write_text("step 1\nstep 2\n")
    assert rlhf("logs", "sort").stdout == "step 1\nstep 2\n"
    assert rlhf("logs", "sort", "--driver", "--tail", "1").stdout == "step 2\n"
    assert rlhf("logs", "sort", "--rank", "0", "--tail", "0").stdout == ""
    assert rlhf("logs", "sort", "--rank", "0").stdout == "a\nb\n"
    assert rlhf("logs", "sort", "--worker", "reward").stdout == "r\n"
    missing = rlhf("logs", "sort", "--rank", "9")
    assert missing.exit_code == 2
    assert "got logs/rank-9.log of sort (Running), allowed driver, rank-0, reward" in missing.stderr
    assert fake.deleted == []


def test_logs_come_from_a_reader_when_the_cluster_is_gone(fake: FakeKube, tmp_path: Path) -> None:
    running(fake, ENDED, checkpoint=CLAIM, image=IMAGE)
    fake.kubelet = lambda made: started(fake, tmp_path, made)
    result = rlhf("logs", "sort")
    assert (result.exit_code, result.stdout) == (0, "all\n")
    assert "reading the volume through pod sort-reader-" in result.stderr
    assert len(fake.deleted) == 1 and not fake.list(Kind.POD, "team")


def started(fake: FakeKube, tmp_path: Path, made: Document) -> None:
    """The kubelet starts a reader, which sees the job's folder."""
    with_folder(fake, tmp_path, made["metadata"]["name"], driver="all\n")
    state = {"name": "reader", "state": {"running": {}}}
    made["status"] = {"phase": "Running", "containerStatuses": [state]}


def test_a_followed_log_is_told_once_and_to_its_end(
    fake: FakeKube, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(fake)
    run = with_head(fake, tmp_path, rank_0="one\n")
    log = run / "logs" / "rank-0.log"
    happens: list[Callable[[], object]] = [
        lambda: log.write_text("one\ntwo\n"),
        lambda: fake.breaks.append(3),  # the list of files does not arrive
        lambda: log.write_text("one\ntwo\nthree\n"),
        lambda: fake.set_status(Kind.JOB, "team", "sort", RUNNING | {"phase": "Succeeded"}),
    ]
    out = io.BytesIO()

    def pause(seconds: float) -> None:
        happens.pop(0)()

    print_log(fake, "sort", "rank-0", None, True, ReadOptions(), out, pause)
    assert out.getvalue() == b"one\ntwo\nthree\n" and not happens
    assert capsys.readouterr().err == "sort has ended: Succeeded\n"


def test_a_followed_log_that_stays_away_is_given_up(fake: FakeKube, tmp_path: Path) -> None:
    running(fake)
    with_head(fake, tmp_path, rank_0="one\n")
    fake.breaks.extend([0] * 100)
    waits: list[float] = []
    with pytest.raises(TransferFailed, match="cannot be read any more: got the connection"):
        command = partial(print_log, fake, "sort", "rank-0", None, True, ReadOptions())
        command(io.BytesIO(), waits.append)
    assert len(waits) == 30


def test_a_followed_log_that_never_was_is_told_at_the_end(fake: FakeKube, tmp_path: Path) -> None:
    running(fake)
    with_head(fake, tmp_path, rank_0="one\n")

    def ends(seconds: float) -> None:
        fake.set_status(Kind.JOB, "team", "sort", RUNNING | {"phase": "Succeeded"})

    with pytest.raises(NothingToRead, match=r"got logs/rank-7.log .* allowed rank-0"):
        print_log(fake, "sort", "rank-7", None, True, ReadOptions(), io.BytesIO(), ends)


def test_a_model_is_fetched_when_the_cluster_is_gone(fake: FakeKube, tmp_path: Path) -> None:
    running(fake, ENDED, checkpoint=CLAIM, image=IMAGE)
    fake.kubelet = lambda made: started(fake, tmp_path, made)
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    (tmp_path / "run" / "report.html").write_text("<html>")
    pairs = Path("saved", "pairs", "step-000012.jsonl")
    (tmp_path / "run" / pairs).parent.mkdir(parents=True)
    (tmp_path / "run" / pairs).write_text('{"step": 12}\n')
    (tmp_path / "run" / "samples").mkdir()
    (tmp_path / "run" / "samples" / "step-000001.jsonl").write_text("{}\n")
    out = tmp_path / "out"
    result = rlhf("fetch", "sort", "--output", str(out))
    assert (result.exit_code, result.stdout) == (0, f"{out / 'model'}\n")
    assert (out / "model" / "config.json").read_text() == "{}"
    again = rlhf("fetch", "sort", "--output", str(out))
    assert again.exit_code == 2 and "OutputExists" in again.stderr
    saved = rlhf("fetch", "sort", "saved", "--output", str(out))
    assert (saved.exit_code, saved.stdout) == (0, f"{out / 'saved'}\n")
    assert (out / pairs).read_text() == '{"step": 12}\n'
    assert rlhf("fetch", "sort", "samples", "--output", str(out)).exit_code == 0
    assert (out / "samples" / "step-000001.jsonl").read_text() == "{}\n"
    everything = rlhf("fetch", "sort", "all", "--output", str(out), "--force")
    assert everything.exit_code == 0
    assert [Path(line).name for line in everything.stdout.splitlines()] == [
        "model",
        "report.html",
        "samples",
        "saved",
        "logs",
    ]
    assert len(fake.deleted) == 5 and not fake.list(Kind.POD, "team")


def test_a_model_that_is_not_there_yet_says_when_it_will_be(fake: FakeKube, tmp_path: Path) -> None:
    running(fake)
    with_head(fake, tmp_path)
    result = rlhf("fetch", "sort", "--output", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "got model of sort (Running, step 120 of 500)" in result.stderr
    assert not (tmp_path / "out").exists()

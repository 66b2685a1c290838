"""Trackers take what they are given; none can stop a run."""

from __future__ import annotations

import json
import logging
import math
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.telemetry import MlflowSpec, TelemetrySpec, WandbSpec
from rlhf_runtime.telemetry.errors import TrackerMissing, TrackerUnavailable
from rlhf_runtime.telemetry.samples import SampleKind, SampleTable, sample_table
from rlhf_runtime.telemetry.tracked_run import TrackedRun, flat_settings
from rlhf_runtime.telemetry.trackers import TrackerGroup, make_trackers, require_installed

from .test_samples import a_sample

SETTINGS = {"algorithm.type": "GRPO", "schedule.steps": 4, "rewards.0.weight": 0.5, "x.on": True}
SAMPLES = [
    a_sample(2, SampleKind.EVALUATION, response="*0* | <b>\x1b\n1", scores={"reward": 0.1234567}),
    a_sample(2, SampleKind.EVALUATION, scores={"reward": None, "reward/short": -1.0}),
]


def tracked(folder: Path, **settings: Any) -> TrackedRun:
    return TrackedRun("job", folder, {**SETTINGS, **settings})


def test_tensorboard_files_are_read_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    trackers = make_trackers(TelemetrySpec(), tracked(tmp_path))
    trackers.log(1, {"reward/mean": 0.25, "actor/kl": 0.5})
    trackers.log(2, {"reward/mean": math.nan})
    trackers.log_samples(2, SAMPLES)
    trackers.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["reward/mean", "actor/kl"]
    first, second = events.Scalars("reward/mean")
    assert (first.step, first.value) == (1, 0.25)
    assert second.step == 2 and math.isnan(second.value)
    (table,) = events.Tensors("evaluation/samples")
    assert events.SummaryMetadata("evaluation/samples").plugin_data.plugin_name == "text"
    assert table.step == 2
    assert [size.size for size in table.tensor_proto.tensor_shape.dim] == [3, 8]
    cells = [cell.decode() for cell in table.tensor_proto.string_val]
    assert cells[:8] == [
        *("prompt", "response", "reward", "reward/short"),
        *("tokens", "ended by", "prompt id", "row"),
    ]
    assert cells[8:12] == ["    402991=", r"    *0* | <b>\x1b" + "\n    1", "0.12346", ""]
    assert cells[16:20] == ["    402991=", "    012499", "", "-1"]
    assert trackers.failures == {"tensorboard": 0}
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["algorithm.type"].string_value == "GRPO"
    assert (settings["schedule.steps"].number_value, settings["x.on"].bool_value) == (4, True)


def test_tensorboard_goes_on_after_a_full_disk_without_a_damaged_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trackers = make_trackers(TelemetrySpec(), tracked(tmp_path))
    trackers.log(1, {"reward/mean": 1.0})
    (events,) = (tmp_path / "tensorboard").iterdir()
    with file_size_limit(events.stat().st_size + 10):
        trackers.log(2, {"reward/mean": 2.0})
    trackers.log(3, {"reward/mean": 3.0})
    # A killed process closes nothing.
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("reward/mean")] == [(1, 1), (3, 3)]
    assert trackers.failures == {"tensorboard": 1}
    assert "tracker tensorboard could not log step 2: OSError" in caplog.text


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the kernel refuse what goes beyond `size` bytes of a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    program = (
        "import sys, pathlib\n"
        "from rlhf_api.spec.telemetry import TelemetrySpec\n"
        "from rlhf_runtime.telemetry import progress, report, trackers\n"
        "from rlhf_runtime.telemetry.tracked_run import TrackedRun\n"
        "run = TrackedRun('job', pathlib.Path(sys.argv[1]), {'a': 1})\n"
        "group = trackers.make_trackers(TelemetrySpec(), run)\n"
        "group.log(1, {'a': 1.0}); group.log_samples(1, []); group.close()\n"
        "print(sorted({'torch', 'tensorflow', 'ray', 'vllm'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout.strip() == "[]"


def test_no_tracker_is_made_unasked(tmp_path: Path) -> None:
    group = make_trackers(TelemetrySpec(tensorboard=False), tracked(tmp_path))
    assert group.failures == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("library", "spec"),
    [
        ("wandb", TelemetrySpec(tensorboard=False, wandb=WandbSpec(project="p"))),
        (
            "mlflow",
            TelemetrySpec(
                tensorboard=False, mlflow=MlflowSpec(tracking_uri="somewhere", experiment="e")
            ),
        ),
    ],
)
def test_a_missing_library_names_the_extra(
    library: str, spec: TelemetrySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden(library), *sys.meta_path])
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(TrackerMissing, match=rf"rlhf-operator\[{library}\].*telemetry\.{library}"):
        make_trackers(spec, tracked(tmp_path))


class Hidden:
    """An import hook that makes one library look as if it were not installed."""

    def __init__(self, library: str) -> None:
        self.name = library

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Broken:
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise OSError("no network")

    def log_samples(self, step: int, table: SampleTable) -> None:
        raise OSError("no network")

    def close(self) -> None:
        raise RuntimeError("still no network")


class Good:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)

    def log_samples(self, step: int, table: SampleTable) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.closed += 1


def test_a_failing_tracker_is_counted_warned_about_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = Good()
    group = TrackerGroup({"broken": Broken(), "good": good})
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            group.log(step, {"a": 1.0})
        group.log_samples(3, SAMPLES)
        group.close()
        group.close()
    assert good.steps == [1, 2, 3, 3]
    assert good.closed == 1
    assert group.failures == {"broken": 5, "good": 0}
    assert len(caplog.records) == 1
    assert "no network" in caplog.text


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    spec = TelemetrySpec(tensorboard=False, wandb=WandbSpec(project="p", samples=True))
    group = make_trackers(spec, tracked(tmp_path))
    group.log(1, {"reward/mean": 0.123456})
    group.log(2, {"reward/mean": math.nan})
    group.log_samples(2, SAMPLES)
    group.close()
    assert group.failures == {"wandb": 0}
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"reward/mean" in written.read_bytes()
    (table,) = tmp_path.rglob("*.table.json")
    assert table.parent.name == "evaluation" and table.name.startswith("samples_2_")
    content = json.loads(table.read_text())
    assert content["columns"] == list(sample_table(SAMPLES).columns)
    assert content["data"] == [list(row) for row in sample_table(SAMPLES).rows]


@pytest.mark.filterwarnings("ignore")
def test_wandb_goes_on_with_its_run_and_keeps_repeated_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    spec = TelemetrySpec(tensorboard=False, wandb=WandbSpec(project="p"))
    # Killed after step 3, and resumed from the checkpoint of step 1, with more steps to make.
    for number, steps in enumerate(((1, 2, 3), (2, 3, 4))):
        settings = {"schedule.steps": 4 + number}
        group = make_trackers(spec, tracked(tmp_path, **settings))
        for step in steps:
            group.log(step, {"reward/mean": float(10 * number + step)})
        group.close()
        assert group.failures == {"wandb": 0}
    ids, logged, configs = set(), [], []
    for file in sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb")):
        for data in leveldb_records(file.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("config"):
                configs += [item for item in record.config.update]
            if record.HasField("history"):
                items = {item.key or item.nested_key[0]: item for item in record.history.item}
                logged.append(
                    tuple(json.loads(items[name].value_json) for name in ("step", "reward/mean"))
                )
    assert len(ids) == 1
    assert logged == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 12.0), (3, 13.0), (4, 14.0)]
    sent = [
        json.loads(item.value_json)
        for item in configs
        if (item.key or item.nested_key[0]) == "schedule.steps"
    ]
    assert sent == [4, 5]


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Records of a file in the format of LevelDB's log, behind W&B's header of 7 bytes."""
    block, position, parts = 32768, 7, b""
    while position + 7 <= len(content):
        if block - position % block < 7:
            position += block - position % block
        size, kind = struct.unpack_from("<HB", content, position + 4)
        parts += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # complete, or the last part
            yield parts
            parts = b""


def test_settings_that_may_be_secret_are_left_out() -> None:
    secret = [{"name": "TOKEN", "value": "s3cret"}]
    pool = {"name": "a", "device": "CPU", "resources": {"memory": "1Gi"}, "env": secret}
    spec = RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"path": "/m"}}},
            "data": {"train": {"path": "/rows.jsonl", "maxRows": 9}},
            "rewards": [{"http": {"url": "http://a", "headers": secret}}],
            "rollout": {"samplesPerPrompt": 2},
            "schedule": {"steps": 1, "promptsPerStep": 1},
            "resources": {"nodePools": [pool]},
            "env": secret,
        }
    )
    settings = flat_settings(spec)
    assert "s3cret" not in settings.values() and "TOKEN" not in settings.values()
    assert settings["rewards.0.http.url"] == "http://a" and settings["data.train.maxRows"] == 9
    assert settings["resources.nodePools.0.name"] == "a"
    assert "schedule.earlyStop" not in settings and settings["data.shuffle"] is True


def test_no_text_is_sent_to_a_service_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    run = SimpleNamespace(
        log=lambda values: sent.extend(set(values) - {"step"}),
        finish=lambda: None,
        config={},
        define_metric=lambda name, step_metric: None,
    )
    library = SimpleNamespace(
        Settings=lambda **_: None,
        Error=OSError,
        Table=lambda columns, data: data,
        init=lambda **_: run,
        teardown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for wandb in (WandbSpec(project="p"), WandbSpec(project="p", samples=True)):
        group = make_trackers(TelemetrySpec(tensorboard=False, wandb=wandb), tracked(tmp_path))
        group.log(1, {"reward/mean": 0.5})
        group.log_samples(1, SAMPLES)
        group.close()
        assert group.failures == {"wandb": 0}
        assert sent == ["reward/mean", *(["evaluation/samples"] if wandb.samples else [])]
        sent.clear()


@pytest.mark.filterwarnings("ignore")
def test_wandb_without_a_key_does_not_ask_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    spec = TelemetrySpec(tensorboard=False, wandb=WandbSpec(project="p"))
    with pytest.raises(TrackerUnavailable, match="WANDB_API_KEY"):
        make_trackers(spec, tracked(tmp_path))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_a_run_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    address = str(tmp_path / "mlruns")
    unasked = MlflowSpec(tracking_uri=address, experiment="tiny")
    asked = unasked.model_copy(update={"samples": True})
    for name, mlflow in (("unasked", unasked), ("asked", asked)):
        spec = TelemetrySpec(tensorboard=False, mlflow=mlflow)
        group = make_trackers(spec, tracked(tmp_path / name))
        group.log(1, {"reward/mean": 0.25, "memory/rank 0": 5.0, "actor/kl": math.nan})
        group.log(2, {"reward/mean": 0.5})
        group.log_samples(2, SAMPLES[:1])
        group.log_samples(2, SAMPLES)
        group.close()
        assert group.failures == {"mlflow": 0}
    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("tiny")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    assert client.list_artifacts(runs[1].info.run_id) == [], "not asked for"
    history = client.get_metric_history(runs[0].info.run_id, "reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.25), (2, 0.5)]
    assert runs[0].info.status == "FINISHED"
    written = client.download_artifacts(
        runs[0].info.run_id, "evaluation/samples-000002.json", str(tmp_path)
    )
    table = sample_table(SAMPLES)
    params = client.get_run(runs[0].info.run_id).data.params
    assert params["algorithm.type"] == "GRPO" and params["schedule.steps"] == "4"
    group = make_trackers(spec, tracked(tmp_path / "asked", **{"schedule.steps": 5}))
    assert client.get_run(runs[0].info.run_id).info.status == "RUNNING"
    group.log(2, {"reward/mean": 0.75})
    group.close()
    assert group.failures == {"mlflow": 0}
    assert len(client.search_runs([experiment.experiment_id])) == 2, "it went on with its run"
    history = client.get_metric_history(runs[0].info.run_id, "reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.25), (2, 0.5), (2, 0.75)]
    content = json.loads(Path(written).read_text())
    assert content == {"columns": list(table.columns), "data": [list(row) for row in table.rows]}


def test_libraries_are_looked_for_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = MlflowSpec(tracking_uri="somewhere", experiment="e")
    spec = TelemetrySpec(wandb=WandbSpec(project="p"), mlflow=mlflow)
    there = {"wandb", "mlflow"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in there else None)
    require_installed(spec)
    there.remove("mlflow")
    with pytest.raises(TrackerMissing, match=r"no module mlflow for mlflow; .*operator\[mlflow\]"):
        require_installed(spec)
    require_installed(TelemetrySpec())

"""What a check leaves to workers: what is elsewhere, or would last too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_cli.app import app
from rlhf_cli.preflight import CheckedJob
from rlhf_runtime.data.errors import InvalidRow
from rlhf_runtime.preflight import rewards as preflight_rewards
from rlhf_runtime.preflight.findings import Limits
from rlhf_runtime.rewards.errors import InvalidReward

from ..mistakes import Mistake, function
from .jobs import VERIFIERS, write

pytestmark = pytest.mark.slow

runner = CliRunner()


def test_what_is_elsewhere_is_left_to_workers(
    place: Path, model: Path, check: Callable[..., CheckedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(place / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub = {
        "models": {"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-0.5B", "path": None}}},
        "data": {"evaluation": {"huggingFace": "openai/gsm8k", "configuration": "main"}},
    }
    found = check(write(place, model, Mistake("", hub)))
    assert found.unchecked == [
        "the model of actor: workers download Qwen/Qwen2.5-0.5B when they start",
        "rows of the data: there is no tokenizer to read them with",
        "scores of verifiers: there are no rows here to try them on",
    ]
    own = {"data": {"evaluation": {"huggingFace": "openai/gsm8k", "configuration": "main"}}}
    assert check(write(place, model, Mistake("", own))).unchecked == [
        "data.evaluation: workers load openai/gsm8k when they start"
    ]


def test_a_model_that_only_workers_see_is_left_to_them(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    shape = {"numLayers": 2, "hiddenSize": 64, "intermediateSize": 64, "numAttentionHeads": 2}
    shape |= {"numKeyValueHeads": 2, "headDim": 32, "vocabSize": 64}
    apart = {"models": {"actor": {"source": {"path": "/claim/model"}, "shape": shape}}}
    file = write(place, model, Mistake("", apart))
    found = check(file, one_machine=False)
    assert found.unchecked[0] == "the model of actor: /claim/model is not on this machine"
    with pytest.raises(Exception, match="got /claim/model"):
        check(file)


def test_time_ends_what_a_run_waits_for(
    place: Path, model: Path, check: Callable[..., CheckedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.data.rows.BATCH_CHARACTERS", 1)
    (place / "addv.py").write_text("import time\ntime.sleep(60)\n")
    found = check(write(place, model, Mistake("")), Limits(0.0, 0.2))
    assert found.unchecked == [
        "data.train: the rows after the first 1",
        "the reward right: its module loads slowly",
    ]


def test_rows_that_are_not_reached_may_be_of_use(
    place: Path, model: Path, check: Callable[..., CheckedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.data.rows.BATCH_CHARACTERS", 1)
    change = {"data": {"onInvalidRow": "Skip"}}
    found = check(
        write(place, model, Mistake("", change, {0: {"prompt": None}})), Limits(0.0, 10.0)
    )
    assert found.unchecked == ["data.train: the rows after the first 1"]


def test_faults_in_the_rows_that_are_reached_are_told(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    file = write(place, model, Mistake("", rows={0: {"prompt": None}}))
    with pytest.raises(InvalidRow, match="row 0: prompt is null"):
        check(file, Limits(0.0, 10.0))


@pytest.mark.parametrize(
    ("module", "why", "here"),
    [
        ("import os; os.kill(os.getpid(), 9)", "its import ends a process", "SIGKILL"),
        (
            "raise RuntimeError('No CUDA GPUs are available')",
            "its import raises here: RuntimeError: No CUDA GPUs are available",
            "which raised",
        ),
    ],
)
def test_the_head_of_a_cluster_may_lack_what_verifiers_import(
    place: Path, model: Path, check: Callable[..., CheckedJob], module: str, why: str, here: str
) -> None:
    """Memory, or the devices of the nodes that score."""
    (place / "addv.py").write_text(f"{module}\n")
    file = write(place, model, Mistake(""))
    assert check(file, one_machine=False).unchecked == [f"the reward right: {why}"]
    with pytest.raises(InvalidReward, match=here):
        check(file)


def test_an_import_takes_no_more_than_its_part_of_a_heads_memory(
    place: Path,
    model: Path,
    check: Callable[..., CheckedJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the import that fails, not the pod; where rewards are scored here it may have all."""
    monkeypatch.setattr(preflight_rewards, "machine_memory_bytes", lambda: 1 << 30)
    (place / "addv.py").write_text(f"HELD = bytes({1 << 28})\n{VERIFIERS}")
    file = write(place, model, Mistake(""))
    assert check(file, one_machine=False).unchecked == [
        "the reward right: its import raises here: MemoryError"
    ]
    assert not check(file).unchecked


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (function("nowhere:score"), "no such module: got nowhere"),
        (function("addv:scor"), "got scor, allowed exact, score"),
        (function("addv:score", scale=2.0), "got an unexpected keyword argument 'scale'"),
    ],
)
def test_what_no_node_would_find_is_told_on_the_head(
    place: Path, model: Path, check: Callable[..., CheckedJob], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidReward, match=says):
        check(write(place, model, Mistake("", change)), one_machine=False)


def test_verifiers_of_pools_with_variables_are_left_to_them(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    pool = {"name": "cpus", "device": "CPU", "devicesPerNode": 1, "memoryPerDevice": "8Gi"}
    env = [{"name": "ANSWERS", "value": "/claim/answers"}]
    own = {"resources": {"nodePools": [{**pool, "env": env}]}}
    (place / "addv.py").write_text("import os\nos.environ['ANSWERS']\n")
    found = check(write(place, model, Mistake("", own)), one_machine=False)
    assert found.unchecked == [
        "verifiers and environments: pods of node pools have variables of their own"
    ]


def test_environments_of_pools_with_variables_are_left_to_them(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    pool = {"name": "cpus", "device": "CPU", "devicesPerNode": 1, "memoryPerDevice": "8Gi"}
    own = {
        "resources": {"nodePools": [{**pool, "env": [{"name": "ANSWERS", "value": "/claim"}]}]},
        "rollout": {"environment": {"entrypoint": "adders:Untyped"}},
    }
    found = check(write(place, model, Mistake("", own)), one_machine=False)
    assert found.unchecked == [
        "verifiers and environments: pods of node pools have variables of their own",
        "prompts with the schemas of tools: the tools are not known here",
    ]


def test_code_of_a_cluster_is_not_looked_for_here(place: Path, model: Path) -> None:
    away = {"code": {"local": None, "configMap": {"name": "code"}}}
    file = write(place, model, Mistake("", away | function("away:score")))
    result = runner.invoke(app, ["validate", "--deep", str(file)])
    assert result.exit_code == 0, result.output
    assert (
        "not checked: verifiers and algorithms: their code is not on this machine" in result.output
    )


@pytest.mark.parametrize("number", ["01", "09", "10", "13"])
def test_examples_pass(check: Callable[..., CheckedJob], number: str) -> None:
    """As a run checks them, on a machine that is as busy as it may be."""
    (file,) = (Path(__file__).parents[3] / "examples").glob(f"{number}-*.yaml")
    found = check(file, Limits(rows_seconds=600.0, verifier_seconds=600.0))
    assert found.graphs_and_plan is not None and not found.unchecked

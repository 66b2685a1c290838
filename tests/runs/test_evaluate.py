"""`rlhf evaluate` gives the numbers of the run's own evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .cli import Finished, start
from .long_jobs import STEPS
from .records import end, records

pytestmark = pytest.mark.ray


def evaluate(model: Path, run: Finished, output: Path, *more: object) -> str:
    """Output of `rlhf evaluate` with the manifest of a run."""
    words = ["evaluate", model, run.folder.with_suffix(".yaml"), "--output", output]
    command = start([*words, "--devices", 1, *more], output.with_suffix(".log"))
    try:
        assert command.wait() == 0, command.output
        command.assert_no_leftovers()
    finally:
        command.end()
    return command.output


def test_the_model_of_a_run_has_the_numbers_of_its_last_evaluation(
    scratch: Path, ppo: Finished
) -> None:
    last: dict[str, Any] = records(ppo.folder, "evaluation")[-1]
    assert last["step"] == STEPS
    parts = ("", "first/", "second/")
    assert last["metrics"].keys() >= {f"evaluation/{part}reward_mean" for part in parts}
    assert len({last["metrics"][f"evaluation/{part}reward_mean"] for part in parts}) == 3

    output = scratch / "evaluated"
    shown = evaluate(ppo.folder, ppo, output, "--json")
    result = json.loads(shown[shown.index("\n{\n") :])
    assert (result["step"], result["prompts"]) == (STEPS, 40)
    assert result["metrics"] == last["metrics"], "bit for bit"
    files = [
        folder / "samples" / f"evaluation-{STEPS:06d}.jsonl" for folder in (ppo.folder, output)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()

    table = evaluate(ppo.folder / "model", ppo, output)
    (record,) = records(output, "evaluation")
    assert record["metrics"] == last["metrics"]
    (earlier,) = records(output.with_name("evaluated.1"), "evaluation")
    assert earlier["metrics"] == last["metrics"] and "put aside" in table
    mean = f"{last['metrics']['evaluation/first/reward_mean']:.5g}"
    (row,) = [line for line in table.splitlines() if line.startswith("reward_mean ")]
    assert row.split()[2] == mean and end(output)["outcome"] == "succeeded"
    assert "critic" not in (output / "logs" / "rank-0.log").read_text()
    plan = json.loads((output / "plan.json").read_text())
    assert [role["role"] for role in plan["roles"]] == ["actor", "reward"]

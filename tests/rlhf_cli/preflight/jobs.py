"""Manifests, code and rows of jobs, with mistakes in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from ...merging import merge
from ..mistakes import Mistake

MANIFEST = """\
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: add}
spec:
  algorithm: {type: GRPO}
  models: {actor: {source: {path: MODEL}}}
  data: {train: {path: DATA}}
  rewards: [{name: right, function: {entrypoint: "addv:score"}}]
  rollout: {samplesPerPrompt: 4, maxPromptTokens: 16, maxResponseTokens: 16}
  schedule: {steps: 2, promptsPerStep: 8}
  code: {local: .}
"""
VERIFIERS = """
import rlhf_runtime.rewards as rewards

def score(samples):
    return [float(each.response == each.record["answer"]) for each in samples]

@rewards.measures("exact_match")
def exact(samples, *, scale=1.0):
    return score(samples)
"""
ENVIRONMENTS = '''
class Adder:
    def add(self, a: int, b: int) -> str:
        """Add."""
        return str(a + b)

class Untyped:
    def add(self, a, b):
        """Add."""
'''
STEP = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import Custom, GroupAdvantages

class Mine(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, OPERATION)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))

def shifted(columns, *, by):
    return {}
"""
ROWS = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(32)]


def write(place: Path, model: Path, mistake: Mistake) -> Path:
    """The manifest of a job with a mistake."""
    rows = [{**row, **mistake.rows.get(number, {})} for number, row in enumerate(ROWS)]
    data = place / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if mistake.data_damage is not None:
        mistake.data_damage(data)
    if mistake.damage is not None:
        model = Path(shutil.copytree(model, place / "model"))
        mistake.damage(model)
    manifest = yaml.safe_load(MANIFEST)
    change: dict[str, Any] = json.loads(json.dumps(mistake.change))
    if mistake.operation:
        (place / "mine.py").write_text(STEP.replace("OPERATION", mistake.operation))
        change["algorithm"] = {"type": "Custom", "custom": {"entrypoint": "mine:Mine"}}
    merge(manifest["spec"], change)
    text = yaml.safe_dump(manifest).replace("MODEL", str(model)).replace("DATA", str(data))
    file = place / "job.yaml"
    file.write_text(text)
    return file

"""The plan's decisions stand in the report."""

from __future__ import annotations

from rlhf_api.plan import Plan
from rlhf_runtime.telemetry.plan_table import plan_tables
from rlhf_runtime.telemetry.report import write_report

from .conftest import MakeRun

PLAN = Plan.model_validate(
    {
        "job": "sort-grpo",
        "pools": [
            {
                "name": "local",
                "device": "CPU",
                "nodes": 1,
                "devicesPerNode": 2,
                "memoryBytesPerDevice": 8 << 30,
                "roles": ["actor"],
            }
        ],
        "roles": [
            {
                "role": "actor",
                "head": "LM",
                "isTrained": True,
                "generates": True,
                "origin": "actor",
                "numParameters": 541312,
                "precision": "float32",
            }
        ],
        "calls": [
            {
                "graph": "Step",
                "call": "actor.generate",
                "role": "actor",
                "method": "generate",
                "kind": "Generate",
                "pool": "local",
                "mesh": {"data": 1, "tensor": 2},
                "reads": [],
                "writes": [],
            }
        ],
        "inputs": {"Step": ["prompt_id", "prompt_tokens", "record"]},
        "policy": "actor",
        "generations": [
            {
                "role": "actor",
                "tensor": 2,
                "data": 1,
                "kvCacheBytes": 1024,
                "maxConcurrentSequences": 8,
                "maxSequenceTokens": 16,
                "releaseDuringTraining": False,
                "maxSamplesPerPrompt": 4,
            }
        ],
        "memory": {
            "capacityBytes": 8 << 30,
            "items": [
                {"role": "actor", "what": "KVCache", "bytes": 2 << 30, "phases": ["actor.generate"]}
            ],
            "peaks": {"actor.generate": 2 << 30},
        },
        "standby": False,
        "reasons": ["One pool & one engine."],
    }
)


def test_calls_roles_memory_and_reasons_are_shown() -> None:
    html = plan_tables(PLAN)
    assert "local: data 1 × tensor 2" in html
    assert "541,312" in html and "language model" in html and "trained, generates" in html
    assert "width:25.0%" in html and "2.0 GiB" in html
    assert "One pool &amp; one engine." in html


def test_the_report_has_the_plan_that_was_kept(make_run: MakeRun) -> None:
    folder = make_run(2)
    folder.write_plan(PLAN)
    assert folder.read_plan() == PLAN
    assert 'id="plan"' in write_report(folder).read_text(encoding="utf-8")


def test_a_plan_of_another_version_is_left_out(make_run: MakeRun) -> None:
    folder = make_run(2)
    folder.plan.write_text('{"version": 99}', encoding="utf-8")
    assert folder.read_plan() is None
    assert 'id="plan"' not in write_report(folder).read_text(encoding="utf-8")

"""The plan's decisions stand in the report."""

from __future__ import annotations

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Plan
from rlhf_runtime.telemetry.plan_section import plan_tables
from rlhf_runtime.telemetry.report import write_report

from .conftest import MakeRun

GENERATION = {"role": "actor", "kind": "Generate"}
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
            }
        ],
        "roles": [
            {
                "role": "actor",
                "head": "LM",
                "isTrained": True,
                "generates": True,
                "origin": "actor",
                "mesh": {"pool": "local", "data": 2},
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
                "mesh": {"pool": "local", "data": 1, "tensor": 2},
                "reads": [],
                "writes": [],
            }
        ],
        "inputs": {"Step": {"prompts": ["prompt_id", "prompt_tokens", "record"]}},
        "policy": "actor",
        "generations": [
            {
                "role": "actor",
                "mesh": {"pool": "local", "data": 1, "tensor": 2},
                "kvCacheBytes": 1024,
                "maxConcurrentSequences": 8,
                "maxSequenceTokens": 16,
                "releaseDuringTraining": False,
                "maxSamplesPerPrompt": 4,
                "kvBlockTokens": 16,
            }
        ],
        "memory": [
            {
                "pool": "local",
                "firstRank": 0,
                "numDevices": 2,
                "capacityBytes": 8 << 30,
                "items": [
                    {
                        "role": "actor",
                        "what": "KVCache",
                        "bytes": 2 << 30,
                        "phases": [GENERATION],
                    }
                ],
                "peaks": [{"phase": GENERATION, "bytes": 2 << 30}],
            }
        ],
        "passesAhead": 1,
        "standby": False,
        "reasons": ["One pool & one engine."],
    }
)


def test_calls_roles_memory_and_reasons_are_shown() -> None:
    html = plan_tables(PLAN)
    assert "devices 0 to 1 of pool local: data 1 × tensor 2" in html
    assert "541,312" in html and "language model" in html and "trained, generates" in html
    assert "<span>actor.generate</span>" in html
    assert "width:25.0%" in html and "2.0 GiB" in html
    assert "One pool &amp; one engine." in html


def test_each_group_of_devices_shows_its_memory() -> None:
    (memory,), (call,) = PLAN.memory, PLAN.calls
    assert call.mesh is not None and "Memory of one device</h3>" in plan_tables(PLAN)
    first, second = (
        memory.model_copy(update={"first_rank": rank, "num_devices": 1}) for rank in range(2)
    )
    apart = call.model_copy(update={"mesh": call.mesh.model_copy(update={"first_rank": 1})})
    html = plan_tables(PLAN.model_copy(update={"memory": (first, second), "calls": (apart,)}))
    assert "Memory of one device: device 0 of pool local</h3>" in html
    assert "Memory of one device: device 1 of pool local</h3>" in html
    assert "devices 1 to 2 of pool local: data 1 × tensor 2" in html


def test_a_transition_shows_from_which_devices_weights_come() -> None:
    (call,) = PLAN.calls
    source = Mesh(pool="local", first_rank=2, data=2)
    apart = call.model_copy(update={"source_mesh": source})
    html = plan_tables(PLAN.model_copy(update={"calls": (apart,)}))
    assert "devices 2 to 3 of pool local to devices 0 to 1 of pool local: data 1" in html


def test_groups_of_ranks_that_are_no_neighbours_are_shown() -> None:
    (call,) = PLAN.calls
    mesh = Mesh(pool="local", data=2, tensor=2, tensor_stride=2)
    html = plan_tables(PLAN.model_copy(update={"calls": (call.model_copy(update={"mesh": mesh}),)}))
    assert "devices 0 to 3 of pool local: data 2 × tensor 2 in groups {0,2}, {1,3}" in html


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

import re
from pathlib import Path

import pytest
import torch

from rlhf_api.calls import CallKind, Phase
from rlhf_api.plan import Plan
from rlhf_api.plan_memory import MemoryItem, MemoryPlan, MemoryUse, phase_peaks
from rlhf_api.reading.manifest import load_file
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.plan import make_plan, pools_of
from rlhf_runtime.calls.out_of_memory import is_out_of_memory, out_of_memory_text

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml"
TRAIN = ModelCall("actor.train", "actor", "train", CallKind.TRAIN, (), ())


@pytest.fixture
def plan() -> Plan:
    (job,) = load_file(EXAMPLE)
    return make_plan(job, pools_of(job, 1))[1]


def test_what_the_allocators_raise_is_recognized() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(torch.OutOfMemoryError("CUDA"))
    assert not is_out_of_memory(RuntimeError("a shape is wrong"))


def test_the_message_compares_the_plan_with_what_was_used(plan: Plan) -> None:
    held = {("actor", MemoryUse.OPTIMIZER): 7 << 20}
    text = out_of_memory_text(
        plan.fullest, plan.role("actor"), TRAIN, 3, 1, 5 << 30, held, MemoryError("no more\nstack")
    )
    assert text.startswith("rank 1 ran out of memory in actor.train, step 3: got 5.00 GiB in use")
    assert "actor Activations" in text and "process Overhead" in text
    assert "actor Optimizer 4.1 MiB, got 7.0 MiB;" in text, text
    assert re.search(r"expected \d+\.?\d* [MG]iB of \d+\.?\d* [MG]iB \(", text), text
    assert text.endswith("MemoryError: no more")


def test_what_is_set_already_is_not_proposed(plan: Plan) -> None:
    phase = Phase(role="actor", kind=CallKind.TRAIN)
    activations = MemoryItem(
        role="actor", what=MemoryUse.ACTIVATIONS, bytes=9 << 30, phases=(phase,)
    )
    memory = MemoryPlan(
        pool="local",
        first_rank=0,
        num_devices=1,
        capacity_bytes=1 << 30,
        items=(activations,),
        peaks=phase_peaks((activations,)),
    )
    role = plan.role("actor")
    assert role is not None
    texts = {
        recomputes: out_of_memory_text(
            memory,
            role.model_copy(update={"recomputes": recomputes}),
            TRAIN,
            3,
            1,
            5 << 30,
            {},
            MemoryError(),
        )
        for recomputes in (False, True)
    }
    assert all("lower training.microBatchTokens" in text for text in texts.values())
    assert [r for r, text in texts.items() if "activationRecompute" in text] == [False]

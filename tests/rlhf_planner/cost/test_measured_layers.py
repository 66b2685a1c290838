"""Layers from a profile: by hand, in calls, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import ProfileUnusable
from rlhf_planner.cost.analytic_layers import analytic_layers
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import CPU, HARDWARE
from rlhf_planner.cost.layers import UNCUT, LayerCut, LayerKind
from rlhf_planner.cost.measured_layers import hardware_for, layers_for, require_ranks
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.train_and_infer import train_seconds
from rlhf_planner.problem.profile import Profile, default_path, read_profile

from .a_profile import MODEL, PROFILE
from .simple import SMALL, a_role, equal

EMBEDDING, BLOCK, HEAD = LayerKind
HERE = hardware_for(CPU, PROFILE)
LAYERS = layers_for(SMALL, Precision.FLOAT32, HERE, PROFILE)


def test_passes_by_hand() -> None:
    """10 tokens with 4 pairs in a block: 10 + 2, thrice that with recomputation in place of
    twice."""
    assert LAYERS.forward(BLOCK, UNCUT, 10, 4).total == 12
    assert LAYERS.forward(EMBEDDING, UNCUT, 10, 0).total == 100
    assert LAYERS.forward(HEAD, UNCUT, 10, 0).total == 1000
    assert LAYERS.backward(BLOCK, UNCUT, 10, 4, False).total == 24
    assert LAYERS.backward(BLOCK, UNCUT, 10, 4, True).total == 36
    assert LAYERS.optimizer(10) == 70


def test_generation_by_hand() -> None:
    """Of a step's 5 + 3 a the hardware has 5 already."""
    assert LAYERS.prefill(BLOCK, UNCUT, 10, 4).total == 12
    assert LAYERS.prefill(EMBEDDING, UNCUT, 10, 0).total == 100
    assert LAYERS.decode(BLOCK, UNCUT, 8, 100).total == 16 + 25
    assert LAYERS.decode(HEAD, UNCUT, 8, 0).total == 24
    assert LAYERS.decode(EMBEDDING, UNCUT, 8, 0).total == 0
    assert HERE.engine_step_seconds == 5


def test_a_training_call_is_the_sum_of_its_layers() -> None:
    """One rank, one micro-batch of 2 rows of 4 + 6 tokens: 20 tokens, 100 pairs, 12 predicted.
    Two blocks 3 (20 + 50), the ends 3 x 200 and 3 x 1200, the step 7 for each parameter."""
    role = a_role(device=Device.CPU)
    links = Links(HERE, 1)
    call = train_seconds(role, CallRows(2, equal(4), equal(6)), LAYERS, links)
    assert call.total == pytest.approx(
        2 * 3 * (20 + 50) + 3 * 200 + 3 * 1200 + 7 * role.num_parameters
    )


def test_measured_constants_replace_those_of_a_sheet() -> None:
    assert HERE.memory_seconds(8) == 2
    links = Links(HERE, 2)
    pair = links.data_group(Mesh(pool="a", data=2))
    assert links.all_gather_seconds(8, pair) == 0.5 + 4 / 2
    without = PROFILE.model_copy(
        update={"constants": PROFILE.constants.model_copy(update={"link_bytes_per_second": None})}
    )
    assert hardware_for(CPU, without).link_bytes_per_second == CPU.link_bytes_per_second
    assert hardware_for(CPU) is CPU


def test_without_a_profile_data_sheets_answer() -> None:
    assert layers_for(SMALL, Precision.FLOAT32, CPU) is analytic_layers(
        CPU, SMALL, Precision.FLOAT32
    )


def test_equal_arguments_give_the_same_object() -> None:
    """Also for another number of the same blocks."""
    again = Profile.model_validate_json(PROFILE.to_json())
    assert layers_for(SMALL, Precision.FLOAT32, HERE, again) is LAYERS
    deeper = layers_for(replace(SMALL, num_layers=9), Precision.FLOAT32, HERE, PROFILE)
    assert deeper.forward(BLOCK, UNCUT, 10, 4) == LAYERS.forward(BLOCK, UNCUT, 10, 4)


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        (replace(SMALL, hidden_size=16), Precision.FLOAT32),
        (replace(SMALL, vocab_size=65), Precision.FLOAT32),
        (SMALL, Precision.BFLOAT16),
    ],
)
def test_a_model_that_was_not_measured_is_refused(shape: object, precision: Precision) -> None:
    with pytest.raises(ProfileUnusable, match=r"got .* in .*, allowed 8 wide .*rlhf profile FILE"):
        layers_for(shape, precision, HERE, PROFILE)  # type: ignore[arg-type]


def test_what_was_not_measured_of_a_model_is_refused() -> None:
    with pytest.raises(ProfileUnusable, match="got layers of tensor 2 .* allowed training and gen"):
        LAYERS.forward(BLOCK, LayerCut(2), 10, 4)
    only = PROFILE.model_copy(update={"models": (MODEL.model_copy(update={"training": None}),)})
    layers = layers_for(SMALL, Precision.FLOAT32, HERE, only)
    with pytest.raises(ProfileUnusable, match="got training and inference of tensor 1"):
        layers.forward(BLOCK, UNCUT, 10, 4)
    with pytest.raises(ProfileUnusable, match="got training of tensor 1"):
        layers.optimizer(1)


def test_a_profile_of_another_device_is_refused() -> None:
    with pytest.raises(ProfileUnusable, match="got a core .CPU., allowed GPU as H100 is"):
        hardware_for(HARDWARE["H100"], PROFILE)
    with pytest.raises(ProfileUnusable, match="got 2 of 1 threads each, allowed 4; .*--devices 4"):
        require_ranks(PROFILE, Device.CPU, 4)
    require_ranks(PROFILE, Device.CPU, 2)


def test_a_profile_is_what_its_file_says(tmp_path: Path) -> None:
    place = default_path(tmp_path / "job.yaml")
    assert place.name == "job.profile.json"
    place.write_text(PROFILE.to_json())
    assert read_profile(place) == PROFILE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "Invalid JSON"),
        ("{}", "measured: Field required"),
        (PROFILE.to_json().replace('"version": 1', '"version": 2'), "version: Input should be 1"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str, said: str) -> None:
    place = tmp_path / "some.json"
    place.write_text(text)
    with pytest.raises(ProfileUnusable, match=f"{said}.*allowed version 1; measure again"):
        read_profile(place)


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileUnusable, match="No such file.*correct the path"):
        read_profile(tmp_path / "some.json")

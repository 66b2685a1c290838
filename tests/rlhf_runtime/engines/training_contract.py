"""What every training engine must do, on any mesh: scenarios for worlds of ranks, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlhf_runtime.engines.world import World

from .contract_exports import (
    a_checkpoint_is_exported_as_the_engine_saves,
    settings_of_sampling_that_transformers_refuses_to_write_are_kept,
)
from .contract_models import (
    a_critic_takes_the_actors_trunk_only,
    a_value_head_starts_at_zero_and_learns,
    a_whole_copy_is_of_models_that_are_alike,
    reward_models_load_elsewhere,
    saved_models_load_elsewhere,
)
from .contract_offloading import (
    offloading_changes_nothing,
    offloading_gives_memory_back,
)
from .contract_reading import (
    outputs_equal_hugging_face,
    temperature_and_entropy_are_those_asked_for,
)
from .contract_setup import HALF, Setup
from .contract_updates import (
    a_gradient_that_is_not_finite_changes_no_weight,
    a_replica_without_rows_takes_part,
    equal_updates_give_equal_weights,
    every_micro_batch_is_told,
    half_precision_trains_nearly_alike,
    pieces_give_the_gradient_of_the_whole,
    ranks_do_not_change_the_result,
    recomputation_changes_nothing,
    rows_without_gradient_are_read_and_change_nothing,
    split_comparisons_give_the_gradient_of_the_whole,
    updates_are_those_of_plain_torch,
)
from .contract_vocabulary import excluded_tokens_are_impossible, only_kept_tokens_are_possible

PER_MODEL: dict[str, Callable[..., None]] = {
    "outputs equal Hugging Face's": outputs_equal_hugging_face,
    "a value head starts at zero and learns": a_value_head_starts_at_zero_and_learns,
    "pieces give the gradient of the whole": pieces_give_the_gradient_of_the_whole,
    "ranks do not change the result": ranks_do_not_change_the_result,
    "recomputation changes nothing": recomputation_changes_nothing,
    "saved models load elsewhere": saved_models_load_elsewhere,
    "reward models load elsewhere": reward_models_load_elsewhere,
    "a critic takes the actor's trunk only": a_critic_takes_the_actors_trunk_only,
    "a whole copy is of models that are alike": a_whole_copy_is_of_models_that_are_alike,
}
"""For every kind of model."""


def in_half_precision(scenario: Callable[..., None]) -> Callable[..., None]:
    """The same, of engines that compute in bfloat16."""

    def run(world: World, folder: Path, setup: Setup, kind: str) -> None:
        scenario(world, folder, replace(setup, precision=HALF), kind)

    return run


IN_EITHER_PRECISION: dict[str, Callable[..., None]] = {
    "temperature and entropy are those asked for": temperature_and_entropy_are_those_asked_for,
    "a gradient that is not finite changes no weight": (
        a_gradient_that_is_not_finite_changes_no_weight
    ),
    "a replica without rows takes part": a_replica_without_rows_takes_part,
    "rows without gradient are read and change nothing": (
        rows_without_gradient_are_read_and_change_nothing
    ),
    "equal updates give equal weights": equal_updates_give_equal_weights,
    "a checkpoint is exported as the engine saves": a_checkpoint_is_exported_as_the_engine_saves,
    "only kept tokens are possible": only_kept_tokens_are_possible,
}
OF_EVERY_MODEL = (
    "outputs equal Hugging Face's",
    "pieces give the gradient of the whole",
    "ranks do not change the result",
    "recomputation changes nothing",
    "saved models load elsewhere",
    "a critic takes the actor's trunk only",
)
IN_HALF_PRECISION: dict[str, Callable[..., None]] = {
    f"{name}, in bfloat16": in_half_precision(scenario)
    for name, scenario in (
        IN_EITHER_PRECISION | {name: PER_MODEL[name] for name in OF_EVERY_MODEL}
    ).items()
}
"""For one kind of model, where precision may matter."""
ONCE: dict[str, Callable[..., None]] = {
    **IN_EITHER_PRECISION,
    "half precision trains nearly alike": half_precision_trains_nearly_alike,
    "updates are those of plain torch": updates_are_those_of_plain_torch,
    "split comparisons give the gradient of the whole": (
        split_comparisons_give_the_gradient_of_the_whole
    ),
    "settings of sampling that transformers refuses to write are kept": (
        settings_of_sampling_that_transformers_refuses_to_write_are_kept
    ),
    "every micro-batch is told": every_micro_batch_is_told,
    "excluded tokens are impossible": excluded_tokens_are_impossible,
    "offloading changes nothing": offloading_changes_nothing,
    "offloading gives memory back": offloading_gives_memory_back,
}
"""For one kind of model."""

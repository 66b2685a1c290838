"""The generation engines by the name that a manifest gives them.

The only module of roles and profiling that imports an engine's package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rlhf_api.spec.rollout import GenerationEngineType
from rlhf_runtime.engines.generation import EngineSettings, GenerationEngine
from rlhf_runtime.engines.world import World


class EngineFactory(NamedTuple):
    """The functions of one kind of engine. They import its package: a job pays for its own."""

    make: Callable[[EngineSettings, World], GenerationEngine]
    library_version: Callable[[], str]


def _make_vllm_engine(settings: EngineSettings, world: World) -> GenerationEngine:
    from rlhf_runtime.engines.vllm.engine import VllmEngine

    return VllmEngine(settings, world)


def _vllm_version() -> str:
    from rlhf_runtime.engines.vllm.libraries import vllm_version

    return vllm_version()


GENERATION_ENGINES: Mapping[GenerationEngineType, EngineFactory] = {
    GenerationEngineType.VLLM: EngineFactory(_make_vllm_engine, _vllm_version),
}


def make_generation_engine(
    engine: GenerationEngineType, settings: EngineSettings, world: World
) -> GenerationEngine:
    """Start an engine. Collective over the ranks of the settings' groups.

    Raises:
        UnsupportedModel: the engine refuses the model or its settings.
    """
    return GENERATION_ENGINES[engine].make(settings, world)


def library_version(engine: GenerationEngineType) -> str:
    """Version of the library of an engine that was started."""
    return GENERATION_ENGINES[engine].library_version()

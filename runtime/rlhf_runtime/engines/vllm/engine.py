"""A vLLM engine whose parameters are ordinary storage, driven request by request.

Owned by a role that generates. All ranks of a tensor-parallel group make the same calls in the same
order; groups are independent of each other.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from rlhf_api.spec.resources import Device
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.vllm import patches
from rlhf_runtime.engines.vllm.arguments import EngineSettings, engine_arguments
from rlhf_runtime.engines.vllm.groups import engine_groups, leave_groups
from rlhf_runtime.engines.vllm.layout import vllm_views
from rlhf_runtime.engines.vllm.libraries import import_vllm
from rlhf_runtime.engines.vllm.memory import DeviceMemory, EngineMemory, HostMemory
from rlhf_runtime.engines.vllm.requests import Generated, Requests, Sampling
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.reshard.views import Views

LONGEST_REFUSAL = 300
"""Characters of what vLLM says: it may list all that it serves."""


class VllmEngine:
    """Generates, and lends out its weights' storage."""

    def __init__(self, settings: EngineSettings, world: World) -> None:
        """Build it; collective over the ranks of the settings' groups, which are of the world."""
        device = world.device
        import_vllm(Device.CPU if device.type == "cpu" else Device.GPU)
        set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
        patches.keep_ordinary_weights()
        patches.inspect_models_here()
        local_rank = 0 if device.type == "cpu" else (device.index or 0)
        patches.join_existing_world(dist.get_rank(), local_rank, settings.world)
        patches.keep_the_world()
        self._settings = settings
        with engine_groups(settings.groups, world.timeout):
            self._core = _build_core(settings, device)
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by nothing
        torch.set_num_threads(num_threads)
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        self._numbers = count()
        self._memory: EngineMemory = (
            HostMemory(self._runner) if device.type == "cpu" else DeviceMemory(self._core)
        )
        self.has_weights = False

    def views(self) -> Views:
        """This rank's storage of every weight, by Hugging Face name."""
        return vllm_views(self._runner.model)

    def generate(
        self,
        prompts: Column,
        sampling: Sampling,
        tick: Hook = nothing,
        max_tokens: int | None = None,
    ) -> Generated:
        """One response for each packed prompt, in the same order; `tick` after every token.

        Responses have at most `max_tokens`, by default as many as the settings say.
        """
        requests = self.start(prompts, sampling, max_tokens)
        requests.run(tick)
        return requests.generated()

    def start(self, prompts: Column, sampling: Sampling, max_tokens: int | None = None) -> Requests:
        """The same requests, not run yet.

        The cache takes its memory again, if it was given back: what brought the weights needs it no
        more.
        """
        self._memory.restore_cache()
        self._forget_prompts()
        requests = Requests(self._core, self._settings.stop_token_ids, self._numbers)
        most = max_tokens or self._settings.max_response_tokens
        requests.add(prompts, sampling, [most] * len(sampling.seeds))
        return requests

    def weights_written(self) -> None:
        """Say that the storage of `views` now holds weights to generate with."""
        self.has_weights = True

    def release(self) -> None:
        """Give the memory of weights and cache back; weights must be restored before use."""
        self.has_weights = False
        self._memory.release()

    def restore_weights(self) -> None:
        """Take the memory of the weights again. They are undefined until they are written."""
        self._memory.restore_weights()

    def close(self) -> None:
        """End the engine and free what it holds. Collective over its ranks."""
        self._core.shutdown()
        leave_groups()

    def _forget_prompts(self) -> None:
        """Older weights made their keys and values; besides, a call depends on itself only."""
        if not self._core.reset_prefix_cache():
            raise StaleWeights(
                "keys and values of older weights are still in use: got a prefix cache that vLLM "
                "could not reset, allowed only between generations; nothing was generated"
            )


def _build_core(settings: EngineSettings, device: torch.device) -> Any:
    """vLLM's engine core, built as its own front end does: that would add servers and texts.

    Raises:
        UnsupportedModel: vLLM refuses the model or what is asked of it, before it takes any memory.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    total = None if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
    arguments = EngineArgs(**engine_arguments(settings, total))
    try:
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    except ValueError as error:  # pydantic's is one, too
        told = " ".join(str(error).split())[:LONGEST_REFUSAL]
        raise UnsupportedModel(
            f"vLLM refuses the model: got {settings.folder}: {told}; choose a model that it serves"
        ) from error
    return EngineCore(config, Executor.get_class(config), log_stats=False)

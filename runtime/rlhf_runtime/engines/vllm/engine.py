"""VllmEngine: a vLLM engine with parameters in ordinary storage, driven request by request.

Owned by a generating role. All ranks of a tensor-parallel group make the same calls in the same
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
from rlhf_runtime.engines.vllm.layout import vllm_views
from rlhf_runtime.engines.vllm.libraries import import_vllm
from rlhf_runtime.engines.vllm.memory import DeviceMemory, EngineMemory, HostMemory
from rlhf_runtime.engines.vllm.patches import engine_groups, leave_groups
from rlhf_runtime.engines.vllm.requests import Generated, Requests, Sampling
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.reshard.views import Views

MAX_REFUSAL_CHARACTERS = 300
"""Maximum length of vLLM's text in an error: it may list all supported models."""


class VllmEngine:
    """Generates responses, and gives access to its weights' storage."""

    def __init__(self, settings: EngineSettings, world: World) -> None:
        """Build the engine; collective over the ranks of the settings' groups."""
        device = world.device
        import_vllm(Device.CPU if device.type == "cpu" else Device.GPU)
        set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
        # Before the engine is built: its constructors call the patched functions.
        patches.disable_weight_packing()
        patches.inspect_models_in_process()
        local_rank = 0 if device.type == "cpu" else (device.index or 0)
        patches.use_existing_world(dist.get_rank(), local_rank, settings.world)
        patches.keep_process_group()
        self._settings = settings
        with engine_groups(settings.groups, world.timeout):
            self._core = _build_core(settings, device)
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a no-op
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
        tick: Hook = noop,
        max_tokens: int | None = None,
    ) -> Generated:
        """Generate one response per packed prompt, in the same order; `tick` after every token.

        Responses have at most `max_tokens`; None: the maximum of the settings.
        """
        requests = self.start(prompts, sampling, max_tokens)
        requests.run(tick)
        return requests.generated()

    def start(self, prompts: Column, sampling: Sampling, max_tokens: int | None = None) -> Requests:
        """Add the requests of `generate` without running them; allocates the cache if it was
        released."""
        # Not with the weights: the transfer that writes them may need the cache's memory.
        self._memory.restore_cache()
        self._reset_prefix_cache()
        requests = Requests(self._core, self._settings.stop_token_ids, self._numbers)
        max_new_tokens = max_tokens or self._settings.max_response_tokens
        requests.add(prompts, sampling, [max_new_tokens] * len(sampling.seeds))
        return requests

    def weights_written(self) -> None:
        """Mark the weights as valid: the storage of `views` has been written."""
        self.has_weights = True

    def release(self) -> None:
        """Free the memory of weights and cache; weights must be restored before use."""
        self.has_weights = False
        self._memory.release()

    def restore_weights(self) -> None:
        """Allocate the memory of the weights again. They are undefined until written."""
        self._memory.restore_weights()

    def close(self) -> None:
        """Shut the engine down and free its memory. Collective over its ranks."""
        self._core.shutdown()
        leave_groups()

    def _reset_prefix_cache(self) -> None:
        # Cached keys and values are those of older weights. Resetting them also makes a call's
        # results independent of earlier calls.
        if not self._core.reset_prefix_cache():
            raise StaleWeights(
                "keys and values of older weights are still in use: got a prefix cache that vLLM "
                "could not reset, allowed only between generations; nothing was generated"
            )


def _build_core(settings: EngineSettings, device: torch.device) -> Any:
    """Build vLLM's engine core.

    Raises:
        UnsupportedModel: vLLM refuses the model or its settings, before it allocates any memory.
    """
    # As vLLM's front end does, which would also start servers and handle text.
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    total = None if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
    arguments = EngineArgs(**engine_arguments(settings, total))
    try:
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    except ValueError as error:  # pydantic's ValidationError is one, too
        text = " ".join(str(error).split())[:MAX_REFUSAL_CHARACTERS]
        raise UnsupportedModel(
            f"vLLM refuses the model: got {settings.folder}: {text}; choose a model that it serves"
        ) from error
    return EngineCore(config, Executor.get_class(config), log_stats=False)

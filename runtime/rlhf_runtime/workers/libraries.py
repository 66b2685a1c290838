"""Imports of a rank before it does anything: most of its start-up time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from rlhf_api.spec.resources import Device

# Environment variables that libraries read at import.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy multiplies nothing large; its threads are not forked
    "OMP_WAIT_POLICY": "PASSIVE",  # ranks that wait must not starve those that work
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # torch requires it for deterministic products
}


# Modules that workers import in their calls. None of them imports Ray.
OWN_MODULES = (
    "rlhf_runtime.checkpoint.saver",
    "rlhf_runtime.data.load",
    "rlhf_runtime.engines.vllm.engine",
    "rlhf_runtime.models.sources",
    "rlhf_runtime.models.vocabulary",
    "rlhf_runtime.rewards.scorer",
    "rlhf_runtime.roles.operations",
    "rlhf_runtime.roles.role_classes",
    "rlhf_runtime.roles.saving",
    "transformers.models.llama.modeling_llama",
)

# Modules that Ray imports, and that can be imported without it.
RAY_DEPENDENCIES = ("google.protobuf.json_format", "jsonschema", "msgpack", "psutil", "requests")


def prepare_environment() -> None:
    """Set the variables that libraries read at import. Values of the user stay."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def import_libraries(device: Device) -> None:
    """Import torch, transformers, vLLM and our modules that need them.

    Leaves the process with one thread and no device, so that it can be forked.
    """
    prepare_environment()
    with _collector_disabled():
        import torch  # noqa: F401

        from rlhf_runtime.engines.vllm.libraries import import_vllm

        import_vllm(device)
        for name in OWN_MODULES + RAY_DEPENDENCIES:
            import_module(name)


@contextmanager
def _collector_disabled() -> Iterator[None]:
    was_enabled = gc.isenabled()
    # Imports create only live objects: collections would find nothing, over and over.
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

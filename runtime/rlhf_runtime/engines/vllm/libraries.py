"""vLLM imported as far as text of one model needs it, in half of the time.

vLLM imports packages for images, audio, servers, tracing and tools wherever they are installed.
What is left out here is either optional to it, or named by it in annotations only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rlhf_api.spec.resources import Device

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process, beside the trainer
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # ranks share cores; the operating system places threads
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Reductions that reach into peers' memory: a rank sees no GPU but its own.
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a process that asks CUDA cannot be forked any more
}
"""Read by vLLM and torch at import; a value that the user has set stays."""
CPU_ENVIRONMENT = {
    # vLLM compiles a helper for log-probabilities at the first request: many seconds for nothing.
    "TORCH_COMPILE_DISABLE": "1",
}

OPTIONAL = frozenset(
    {"boto3", "botocore", "cv2", "opentelemetry", "ray", "torchaudio", "torchcodec", "torchvision"}
)
"""Packages that vLLM and transformers do without. Ray reads, when it is imported, what a worker is
told: that is not known yet where workers are forked from."""
NAMED_ONLY = ("openai", "vllm.entrypoints.mcp", "vllm.parser")
"""Packages of servers, of which vLLM's engine uses names in annotations and the types of requests
that nobody makes here."""
CPU_NAMED_ONLY = ("vllm.env_override",)
"""Changes to torch's compiler, which nothing uses on CPUs."""

MODULES = (
    "vllm.v1.engine.core",
    "vllm.engine.arg_utils",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader.dummy_loader",
    "vllm.model_executor.models.llama",
)
"""What an engine imports sooner or later."""
CPU_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn")
GPU_MODULES = ("vllm.v1.worker.gpu_worker",)


def import_vllm(device: Device) -> None:
    """Import what an engine on a kind of device needs; at once where that is done already."""
    if "vllm" in sys.modules:
        return
    on_cpu = device is Device.CPU
    for name, value in {**ENVIRONMENT, **(CPU_ENVIRONMENT if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    with (
        _left_out(OPTIONAL, NAMED_ONLY + (CPU_NAMED_ONLY if on_cpu else ())),
        _nothing_compiled(on_cpu),
    ):
        for name in MODULES + (CPU_MODULES if on_cpu else GPU_MODULES):
            import_module(name)
        if on_cpu:
            _replace_kernels()


def _replace_kernels() -> None:
    """Let vLLM put its kernels for CPUs in the place of Triton's, once for all that are forked.

    It looks through the names of all modules for that, in a third of a second of every engine's
    start.
    """
    platform = import_module("vllm.platforms.cpu").CpuPlatform
    platform.register_triton_kernel_overrides()
    platform.register_triton_kernel_overrides = staticmethod(lambda: None)


def vllm_version() -> str:
    """That of the imported package: its distribution is called otherwise on CPUs."""
    return str(sys.modules["vllm"].__version__)


@contextmanager
def _left_out(optional: frozenset[str], named_only: tuple[str, ...]) -> Iterator[None]:
    """Let some packages seem not to be installed, and of others only their names be there.

    What is imported already stays. Afterwards whoever wants one of them gets the real one.
    """
    missing = optional - sys.modules.keys()
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # what Python's docs say
    finder = _NamesFinder(named_only)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        names = [name for name, module in sys.modules.items() if isinstance(module, _Names)]
        for name in [*missing, *names]:
            del sys.modules[name]


class _NamesFinder(MetaPathFinder, Loader):
    """Finds modules that hold whatever name is asked for."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module's, if it is of one of the packages."""
        is_meant = any(f"{fullname}.".startswith(f"{name}.") for name in self._packages)
        return ModuleSpec(fullname, self, is_package=True) if is_meant else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one."""
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class _Names(ModuleType):
    """A module in which every name is a class without anything."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__class_getitem__": classmethod(lambda cls, _of: cls)})
        setattr(self, name, made)
        return made


@contextmanager
def _nothing_compiled(wanted: bool) -> Iterator[None]:
    """Let `torch.compile` give back what it is given: it takes a second to prepare for nothing."""
    import torch

    def unchanged(function: Any = None, **_options: object) -> Any:
        return (lambda given: given) if function is None else function

    compiled = torch.compile
    if wanted:
        setattr(torch, "compile", unchanged)  # noqa: B010  # its type is overloaded
    try:
        yield
    finally:
        setattr(torch, "compile", compiled)  # noqa: B010

"""Imports vLLM without unused packages, in half of the time.

vLLM imports packages for images, audio, servers, tracing and tools if they are installed. The
packages that are hidden here are either optional, or vLLM uses only their names in annotations.
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
    # Reductions in the memory of other GPUs: a rank's process has access to its own GPU only.
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a process that has called CUDA must not be forked
    # Otherwise torch's compiler times variants of a kernel and takes the fastest: another process
    # would take another one, which adds in another order.
    "TORCHINDUCTOR_DETERMINISTIC": "1",
}
"""Variables that vLLM and torch read at import; values of the user take precedence."""
CPU_ENVIRONMENT = {
    # vLLM compiles a helper for log-probabilities at the first request: many seconds, no gain.
    "TORCH_COMPILE_DISABLE": "1",
}

OPTIONAL = frozenset(
    {"boto3", "botocore", "cv2", "opentelemetry", "ray", "torchaudio", "torchcodec", "torchvision"}
)
"""Packages that vLLM and transformers do not require. Ray is among them because it reads a worker's
settings at import: the process from which workers are forked has none yet."""
STUBBED = ("openai", "vllm.entrypoints.mcp", "vllm.parser")
"""Packages of servers. vLLM's engine uses their names in annotations, and types of requests that
this runtime never sends."""
CPU_STUBBED = ("vllm.env_override",)
"""Patches of torch's compiler, which is not used on CPUs."""

MODULES = (
    "vllm.v1.engine.core",
    "vllm.engine.arg_utils",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader.dummy_loader",
    "vllm.model_executor.models.llama",
)
"""Modules that every engine imports."""
CPU_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn")
GPU_MODULES = ("vllm.v1.worker.gpu_worker",)


def import_vllm(device: Device) -> None:
    """Import vLLM's modules for an engine on a kind of device; no-op if that was done."""
    if "vllm" in sys.modules:
        return
    on_cpu = device is Device.CPU
    for name, value in {**ENVIRONMENT, **(CPU_ENVIRONMENT if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    with (
        _hide_packages(OPTIONAL, STUBBED + (CPU_STUBBED if on_cpu else ())),
        _disable_compile(on_cpu),
    ):
        for name in MODULES + (CPU_MODULES if on_cpu else GPU_MODULES):
            import_module(name)
        if on_cpu:
            _replace_kernels()


def _replace_kernels() -> None:
    """Replace Triton's kernels by vLLM's for CPUs, once for all forked processes."""
    # vLLM searches the names of all modules for that: a third of a second per engine start.
    platform = import_module("vllm.platforms.cpu").CpuPlatform
    platform.register_triton_kernel_overrides()
    platform.register_triton_kernel_overrides = staticmethod(lambda: None)


def vllm_version() -> str:
    """The version of the imported package."""
    # Not from the distribution's metadata: its name on CPUs is another one.
    return str(sys.modules["vllm"].__version__)


@contextmanager
def _hide_packages(optional: frozenset[str], stubbed: tuple[str, ...]) -> Iterator[None]:
    """Make some packages seem absent, and replace others by stubs.

    Packages that are already imported stay. Afterwards imports give the real packages.
    """
    missing = optional - sys.modules.keys()
    # None in sys.modules makes an import fail, as Python documents.
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    finder = _StubFinder(stubbed)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        names = [name for name, module in sys.modules.items() if isinstance(module, _StubModule)]
        for name in [*missing, *names]:
            del sys.modules[name]


class _StubFinder(MetaPathFinder, Loader):
    """Finds stub modules for some packages."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A stub's specification, if the module belongs to one of the packages."""
        is_stubbed = any(f"{fullname}.".startswith(f"{name}.") for name in self._packages)
        return ModuleSpec(fullname, self, is_package=True) if is_stubbed else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stub."""
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """No-op."""


class _StubModule(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = type(name, (), {"__class_getitem__": classmethod(lambda cls, _parameters: cls)})
        setattr(self, name, stub)
        return stub


@contextmanager
def _disable_compile(is_disabled: bool) -> Iterator[None]:
    """Make `torch.compile` return its argument."""
    # On CPUs nothing is compiled, but preparing for it takes a second.
    import torch

    def return_unchanged(function: Any = None, **_options: object) -> Any:
        return (lambda decorated: decorated) if function is None else function

    compile_function = torch.compile
    if is_disabled:
        setattr(torch, "compile", return_unchanged)  # noqa: B010  # its type is overloaded
    try:
        yield
    finally:
        setattr(torch, "compile", compile_function)  # noqa: B010

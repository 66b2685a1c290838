"""Environments and tools of the user's, imported and examined. Standard library only."""

from __future__ import annotations

import dis
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from rlhf_api.entrypoint import deferred_kind, entrypoint_from_file
from rlhf_runtime.environments.returned_values import user_traceback
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentSettings, ToolFacts
from rlhf_runtime.environments.tool_schema import BadTool, Tool, make_tool

# Names of the method that returns a conversation's reward; TRL uses the second one.
REWARD_METHODS = ("reward", "get_reward")
# An attribute that methods set, as TRL's examples do.
REWARD_ATTRIBUTE = "reward"
# Methods that the runtime calls; none of them is a tool.
RUNTIME_METHODS = ("reset", *REWARD_METHODS, "turn_reward", "snapshot", "restore")


class CannotUse(Exception):
    """An environment or a tool that cannot be used; the text says what, got, allowed and do.

    entrypoint: of the class or function; empty: not known.
    is_import: True if its module raises; another machine may have what it needs.
    """

    def __init__(self, text: str, *, is_import: bool = False) -> None:
        super().__init__(text)
        self.entrypoint, self.is_import = "", is_import


@dataclass(frozen=True)
class Environment:
    """One environment: its class, and all that the model can call in it.

    kind: the class; None if the job has only functions without state.
    methods: the class's tools by name.
    functions: tools without state, and what they call.
    """

    kind: type | None
    methods: Mapping[str, Tool]
    functions: Mapping[str, tuple[Tool, Callable[..., Any]]]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reward_method(self) -> str | None:
        """Name of the method that returns the reward; None without one."""
        return next((name for name in REWARD_METHODS if self.has(name)), None)

    @property
    def facts(self) -> ClassFacts:
        """Return all that the owner of processes needs to know."""
        tools = [*self.methods.values(), *(tool for tool, _ in self.functions.values())]
        has_attribute = self.kind is not None and _sets_attribute(self.kind, REWARD_ATTRIBUTE)
        return ClassFacts(
            {tool.name: ToolFacts(tool.schema, tool.repeats) for tool in tools},
            has_reset=self.has("reset"),
            has_reward=self.reward_method is not None or has_attribute,
            has_turn_reward=self.has("turn_reward"),
            has_snapshot=self.has("snapshot"),
            part_names=self._part_names(),
        )

    def has(self, method: str) -> bool:
        """True if the class has a method."""
        return self.kind is not None and callable(getattr(self.kind, method, None))

    def _part_names(self) -> tuple[str, ...]:
        name = self.reward_method
        if name is None:
            return ()
        try:
            returned = typing.get_type_hints(getattr(self.kind, name)).get("return")
        except Exception:  # hints of this method are the user's own business
            return ()
        return tuple(typing.get_type_hints(returned)) if typing.is_typeddict(returned) else ()


def load_environments(settings: EnvironmentSettings) -> dict[str, Environment]:
    """Import and examine all environments of a job, by name.

    Raises:
        CannotUse: one cannot be used.
    """
    functions: dict[str, tuple[Tool, Callable[..., Any]]] = {}
    for entrypoint in settings.tools:
        with _about(entrypoint):
            tool, function = _load_function(entrypoint)
            if tool.name in functions:
                raise CannotUse(
                    f"two tools have one name: got {tool.name} twice, allowed one tool of a name, "
                    f"because the model calls it by that; rename {entrypoint}"
                )
            functions[tool.name] = (tool, function)
    environments = {}
    for name, entrypoint in settings.entrypoints.items():
        with _about(entrypoint):
            kind = _load_class(entrypoint)
            environment = Environment(kind, _methods(kind), functions, settings.parameters)
            _check(environment, settings.has_sources)
            environments[name] = environment
    if not environments:
        environments[""] = Environment(None, {}, functions)
        _check(environments[""], settings.has_sources)
    return environments


@contextmanager
def _about(entrypoint: str) -> Iterator[None]:
    """Name the entrypoint of an error."""
    try:
        yield
    except BadTool as error:
        unusable = CannotUse(str(error))
        unusable.entrypoint = entrypoint
        raise unusable from error
    except CannotUse as error:
        error.entrypoint = entrypoint
        raise


def _load_function(entrypoint: str) -> tuple[Tool, Callable[..., Any]]:
    function = _import(entrypoint)
    if not isinstance(function, FunctionType):
        raise CannotUse(
            f"not a function: got {entrypoint} of type {type(function).__name__}, allowed a "
            "function with type hints; a class belongs to rollout.environment"
        )
    name = entrypoint.partition(":")[2]
    return make_tool(function, name, f"the tool {entrypoint}", is_method=False), function


def _load_class(entrypoint: str) -> type:
    kind = _import(entrypoint)
    if not isinstance(kind, type):
        raise CannotUse(
            f"not a class: got {entrypoint} of type {type(kind).__name__}, allowed a class, of "
            "which every conversation gets an object; name the class"
        )
    return kind


def _methods(kind: type) -> dict[str, Tool]:
    """Return the tools of a class: its public methods, in the order of their definition."""
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__[:-1]):
        names.update(dict.fromkeys(vars(base)))
    methods = {}
    for name in names:
        if name.startswith("_") or name in RUNTIME_METHODS:
            continue
        static = inspect.getattr_static(kind, name)
        function = getattr(kind, name)
        # Those of functools.cache are neither functions nor methods.
        is_wrapper = inspect.isroutine(function) and hasattr(function, "__wrapped__")
        if inspect.isfunction(function) or inspect.ismethod(function) or is_wrapper:
            # Static and class methods have no object left to bind.
            is_bound = isinstance(static, staticmethod | classmethod)
            title = f"the method {kind.__name__}.{name}"
            methods[name] = make_tool(function, name, title, is_method=True, is_bound=is_bound)
    return methods


def _check(environment: Environment, has_sources: bool) -> None:
    """Refuse an environment whose parts do not fit together."""
    kind, title = environment.kind, f"the environment {_title(environment.kind)}"
    if not environment.methods and not environment.functions and not has_sources:
        raise CannotUse(
            f"{title} has no tools: got no public method, allowed at least one with type hints and "
            "a docstring; write one, or remove rollout.environment"
        )
    if clashing := environment.methods.keys() & environment.functions.keys():
        raise CannotUse(
            f"a tool and a method have one name: got {min(clashing)} in {title} and in tools, "
            "allowed one of a name, because the model calls it by that; rename one"
        )
    if kind is None:
        return
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
        raise CannotUse(
            f"{title} is abstract: got no implementation of {missing}, allowed a class that has "
            "all of its methods; name a class that implements them"
        )
    if environment.has("snapshot") != environment.has("restore"):
        raise CannotUse(
            f"{title} has only one of snapshot and restore: got "
            f"{'snapshot' if environment.has('snapshot') else 'restore'}, allowed both or none; "
            "add the other one"
        )
    try:
        inspect.signature(kind).bind(**environment.parameters)
    except TypeError as error:
        raise CannotUse(
            f"{title} does not take its parameters: {error}; got {kind.__name__}"
            f"{inspect.signature(kind)} and parameters {dict(environment.parameters)}; correct one "
            "of them"
        ) from error
    except ValueError:
        pass  # a class of C without a readable signature


def _title(kind: type | None) -> str:
    return "of functions only" if kind is None else f"{kind.__module__}:{kind.__qualname__}"


def _sets_attribute(kind: type, name: str) -> bool:
    """True if a method of a class sets an attribute of this name, or the class has it."""
    return hasattr(kind, name) or any(
        instruction.opname == "STORE_ATTR" and instruction.argval == name
        for code in _codes(kind)
        for instruction in dis.get_instructions(code)
    )


def _codes(kind: type) -> Iterator[CodeType]:
    for base in kind.__mro__:
        for value in vars(base).values():
            if isinstance(value, FunctionType):
                yield value.__code__


def _import(entrypoint: str) -> Any:
    module_name, _, name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # an import runs the user's code, which may also exit
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        meant = entrypoint_from_file(entrypoint)
        if meant or (missing is not None and f"{module_name}.".startswith(f"{missing}.")):
            advice = "correct the name or bring the code with spec.code"
            raise CannotUse(
                f"no such module: got {module_name}, allowed a module on the Python path; "
                + (f"did you mean {meant}?" if meant else advice)
            ) from None
        raise CannotUse(
            f"the module cannot be imported: got {module_name}, which raised\n"
            f"{user_traceback(error)}",
            is_import=True,
        ) from error
    if not hasattr(module, name):
        public = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        ]
        raise CannotUse(
            f"no such name in the module: got {name}, allowed "
            f"{', '.join(sorted(public)) or 'none'}; correct the name"
        )
    return getattr(module, name)


def is_async(function: Callable[..., Any]) -> bool:
    """True if a call of a function returns a coroutine."""
    return deferred_kind(function) == "an async function"

"""Imports a user's classes and functions by `package.module:name`; errors name the cause."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Mapping

from rlhf_api.entrypoint import deferred_kind, entrypoint_from_file
from rlhf_flow.errors import FlowError, InvalidAlgorithm
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.checks import suggest
from rlhf_flow.trace.source_location import errors_located, prefix_definition, prefix_location

ALGORITHM = "the algorithm"
OPERATION = "the custom operation"
PROTOCOL = "the protocol"
_CUSTOM = ("spec", "algorithm", "custom")


def load_algorithm_class(entrypoint: str) -> type[Algorithm]:
    """Import the class of an algorithm.

    Raises:
        InvalidAlgorithm: the module or the class is missing, the module raises, or the class does
            not derive from Algorithm.
    """
    loaded = _load(ALGORITHM, entrypoint, "correct custom.entrypoint")
    if not (isinstance(loaded, type) and issubclass(loaded, Algorithm)):
        raise InvalidAlgorithm(
            f"{entrypoint} is no algorithm: got {loaded!r}, allowed a subclass of "
            f"rlhf_flow.Algorithm; derive {entrypoint.partition(':')[2]} from it"
        )
    return loaded


def require_plain_step(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose step is a coroutine or a generator.

    Raises:
        InvalidAlgorithm: it is.
    """
    # A call of one runs nothing of its body, so the trace would be empty.
    step = type(algorithm).step
    if kind := deferred_kind(step):
        text = (
            f"a call of {type(algorithm).__qualname__}.step runs nothing of it: got {kind}, "
            "allowed a plain method; write def without async, and no yield in it"
        )
        raise InvalidAlgorithm(prefix_definition(step, text))


def check_function(entrypoint: str, parameters: Mapping[str, object]) -> None:
    """Import the function of a custom operation and check its signature.

    Raises:
        InvalidAlgorithm: it cannot be imported, is no plain function, or does not take columns and
            these parameters.
    """
    function = _load(OPERATION, entrypoint, "correct the entry point of Custom(...)")
    if not callable(function):
        raise InvalidAlgorithm(
            f"{OPERATION} {entrypoint} is no function: got {function!r}, allowed one of columns "
            "and the parameters; name a function"
        )
    # Its call would return a coroutine or a generator instead of columns.
    if kind := deferred_kind(function):
        raise InvalidAlgorithm(
            f"{OPERATION} {entrypoint} is {kind}, whose result nobody waits for: got {function!r}, "
            "allowed a plain function, which returns its columns; make it one"
        )
    try:
        expected = inspect.signature(function)
    except ValueError:
        return  # compiled code may have no signature
    # The first argument is the columns.
    try:
        expected.bind({}, **parameters)
    except TypeError as error:
        names = list(expected.parameters)
        unknown = next((name for name in parameters if name not in names), None)
        advice = "change parameters={...} of Custom(...), or the function"
        if unknown is not None:
            advice = suggest(unknown, names[1:], advice)
        raise InvalidAlgorithm(
            f"{OPERATION} {entrypoint} does not take its arguments: got the columns and "
            f"{', '.join(sorted(parameters)) or 'no parameters'} ({error}), allowed "
            f"{entrypoint.partition(':')[2]}{expected}; {advice}"
        ) from error


def check_protocol(entrypoint: str) -> None:
    """Import a user's transfer protocol.

    Raises:
        InvalidAlgorithm: it cannot be imported, or lacks one of its two functions.
    """
    protocol = _load(PROTOCOL, entrypoint, "correct protocol= of Custom(...)")
    functions = ("distribute", "collect")
    if missing := [name for name in functions if not callable(getattr(protocol, name, None))]:
        raise InvalidAlgorithm(
            f"{PROTOCOL} {entrypoint} is no pair: got {protocol!r} without a function "
            f"{' and '.join(missing)}, allowed Protocol(distribute, collect) of "
            "rlhf_runtime.dataplane.protocol; name one"
        )


def build_custom(entrypoint: str, parameters: Mapping[str, object]) -> Algorithm:
    """Build a user's algorithm.

    Raises:
        InvalidAlgorithm: it cannot be imported, lacks a method, or does not take the parameters.
    """
    try:
        kind = load_algorithm_class(entrypoint)
    except InvalidAlgorithm as error:
        raise error.at(*_CUSTOM, "entrypoint") from error.__cause__
    # Checked before the constructor, whose TypeError would not say what to do.
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise InvalidAlgorithm(
            f"{entrypoint} lacks a method: got a class without {', '.join(missing)}; define it"
        )
    try:
        inspect.signature(kind).bind(**parameters)
    except TypeError as error:
        raise InvalidAlgorithm(
            f"{entrypoint} does not take the parameters: got "
            f"{', '.join(sorted(parameters)) or 'none'} ({error}), allowed "
            f"{kind.__name__}{inspect.signature(kind)}; change custom.parameters"
        ).at(*_CUSTOM, "parameters") from error
    try:
        with errors_located():
            return kind(**parameters)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:  # the user's constructor: anything may come out of it
        text = (
            f"{entrypoint} could not be built: {type(error).__name__}: {error}; correct it or "
            "custom.parameters"
        )
        raise InvalidAlgorithm(prefix_location(error, text)) from error


def _load(owner: str, entrypoint: str, advice: str) -> object:
    """Import the object of an entry point.

    Raises:
        FlowError: the module breaks a rule of the flow at import.
        InvalidAlgorithm: the module or the name is missing, or the module raises.
    """
    module_name, _, name = entrypoint.partition(":")
    # importlib would need a package for a relative name; it is often the path of a file.
    if module_name.startswith("."):
        raise InvalidAlgorithm(
            f"no name of a module for {owner}: got {entrypoint}, allowed package.module:name; "
            + (f"did you mean {meant}?" if (meant := entrypoint_from_file(entrypoint)) else advice)
        )
    try:
        with errors_located():
            module = importlib.import_module(module_name)
    except FlowError:
        raise
    except ModuleNotFoundError as error:
        raise InvalidAlgorithm(
            _missing_module(owner, entrypoint, module_name, error, advice)
        ) from error
    except (Exception, SystemExit) as error:  # the user's module: anything may come out of it
        text = (
            f"the module of {owner} {entrypoint} raised {type(error).__name__} when imported: "
            f"{error}; correct {module_name}"
        )
        raise InvalidAlgorithm(prefix_location(error, text)) from error
    if not hasattr(module, name):
        raise InvalidAlgorithm(
            f"no such name for {owner}: got {entrypoint}, but {module_name} has no {name}; "
            f"{suggest(name, dir(module), advice)}"
        )
    return getattr(module, name)


def _missing_module(
    owner: str, entrypoint: str, module_name: str, error: ModuleNotFoundError, advice: str
) -> str:
    # The module itself or one of its parents is missing.
    if error.name is not None and (module_name + ".").startswith(error.name + "."):
        if meant := entrypoint_from_file(entrypoint):
            return (
                f"a file instead of a module for {owner}: got {entrypoint}, allowed "
                f"package.module:name; did you mean {meant}?"
            )
        return (
            f"no such module for {owner}: got {entrypoint}, but there is no module {error.name} on "
            f"the Python path; {advice}, or bring the code with spec.code"
        )
    # The user's module exists, but imports something that does not. In a package that exists the
    # name is probably misspelled.
    parent, _, name = str(error.name).rpartition(".")
    siblings = [module.name for module in pkgutil.iter_modules(_package_folders(parent))]
    advice = suggest(name, siblings, "install it or remove the import")
    return prefix_location(
        error,
        f"the module of {owner} {entrypoint} imports {error.name}, which is not "
        f"{'there' if siblings else 'installed'}; {advice}",
    )


def _package_folders(package: str) -> list[str]:
    return list(getattr(sys.modules.get(package), "__path__", []))

"""Importing a user's classes and functions by `package.module:name`, with errors that say why."""

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
from rlhf_flow.trace.source_location import told_with_place, with_place

ALGORITHM = "the algorithm"
OPERATION = "the custom operation"
PROTOCOL = "the protocol"
_CUSTOM = ("spec", "algorithm", "custom")


def load_algorithm_class(entrypoint: str) -> type[Algorithm]:
    """The class of an entry point.

    Raises:
        InvalidAlgorithm: the module or the class is missing, the module raises, or the class is
            none of Algorithm's.
    """
    found = _load(ALGORITHM, entrypoint, "correct custom.entrypoint")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InvalidAlgorithm(
            f"{entrypoint} is no algorithm: got {found!r}, allowed a subclass of "
            f"rlhf_flow.Algorithm; derive {entrypoint.partition(':')[2]} from it"
        )
    return found


def check_function(entrypoint: str, parameters: Mapping[str, object]) -> None:
    """Look up the function of a custom operation.

    Raises:
        InvalidAlgorithm: it cannot be imported, is no function, or does not take columns and these
            parameters.
    """
    found = _load(OPERATION, entrypoint, "correct the entry point of Custom(...)")
    if not callable(found):
        raise InvalidAlgorithm(
            f"{OPERATION} {entrypoint} is no function: got {found!r}, allowed what takes columns "
            "and the parameters; name a function"
        )
    if kind := deferred_kind(found):
        raise InvalidAlgorithm(
            f"{OPERATION} {entrypoint} is {kind}, whose result nobody waits for: got {found!r}, "
            "allowed a plain function, which returns its columns; make it one"
        )
    try:
        takes = inspect.signature(found)
    except ValueError:
        return  # compiled code may have none
    try:
        takes.bind({}, **parameters)
    except TypeError as error:
        names = list(takes.parameters)
        unknown = next((each for each in parameters if each not in names), None)
        advice = "change parameters={...} of Custom(...), or the function"
        if unknown is not None:
            advice = suggest(unknown, names[1:], advice)
        raise InvalidAlgorithm(
            f"{OPERATION} {entrypoint} does not take its arguments: got the columns and "
            f"{', '.join(sorted(parameters)) or 'no parameters'} ({error}), allowed "
            f"{entrypoint.partition(':')[2]}{takes}; {advice}"
        ) from error


def check_protocol(entrypoint: str) -> None:
    """Look up a transfer protocol of the user's own.

    Raises:
        InvalidAlgorithm: it cannot be imported, or lacks one of its two functions.
    """
    found = _load(PROTOCOL, entrypoint, "correct protocol= of Custom(...)")
    functions = ("distribute", "collect")
    if missing := [name for name in functions if not callable(getattr(found, name, None))]:
        raise InvalidAlgorithm(
            f"{PROTOCOL} {entrypoint} is no pair: got {found!r} without a function "
            f"{' and '.join(missing)}, allowed Protocol(distribute, collect) of "
            "rlhf_runtime.dataplane.protocol; name one"
        )


def build_custom(entrypoint: str, parameters: Mapping[str, object]) -> Algorithm:
    """An instance of a user's algorithm.

    Raises:
        InvalidAlgorithm: it cannot be imported, misses a method, or does not take the parameters.
    """
    try:
        found = load_algorithm_class(entrypoint)
    except InvalidAlgorithm as error:
        raise error.at(*_CUSTOM, "entrypoint") from error.__cause__
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise InvalidAlgorithm(
            f"{entrypoint} lacks a method: got a class without {', '.join(missing)}; define it"
        )
    try:
        inspect.signature(found).bind(**parameters)
    except TypeError as error:
        raise InvalidAlgorithm(
            f"{entrypoint} does not take the parameters: got "
            f"{', '.join(sorted(parameters)) or 'none'} ({error}), allowed "
            f"{found.__name__}{inspect.signature(found)}; change custom.parameters"
        ).at(*_CUSTOM, "parameters") from error
    try:
        with told_with_place():
            return found(**parameters)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:  # the user's constructor: anything may come out of it
        text = (
            f"{entrypoint} could not be built: {type(error).__name__}: {error}; correct it or "
            "custom.parameters"
        )
        raise InvalidAlgorithm(with_place(error, text)) from error


def _load(what: str, entrypoint: str, advice: str) -> object:
    """What an entry point names.

    Raises:
        FlowError: the module uses this package as it must not.
        InvalidAlgorithm: the module or the name is missing, or the module raises.
    """
    module_name, _, name = entrypoint.partition(":")
    if module_name.startswith("."):
        raise InvalidAlgorithm(
            f"no name of a module for {what}: got {entrypoint}, allowed package.module:name; "
            + (f"did you mean {meant}?" if (meant := entrypoint_from_file(entrypoint)) else advice)
        )
    try:
        with told_with_place():
            module = importlib.import_module(module_name)
    except FlowError:
        raise
    except ModuleNotFoundError as error:
        raise InvalidAlgorithm(
            _missing_module(what, entrypoint, module_name, error, advice)
        ) from error
    except (Exception, SystemExit) as error:  # the user's module: anything may come out of it
        text = (
            f"the module of {what} {entrypoint} raised {type(error).__name__} when imported: "
            f"{error}; correct {module_name}"
        )
        raise InvalidAlgorithm(with_place(error, text)) from error
    if not hasattr(module, name):
        raise InvalidAlgorithm(
            f"no such name for {what}: got {entrypoint}, but {module_name} has no {name}; "
            f"{suggest(name, dir(module), advice)}"
        )
    return getattr(module, name)


def _missing_module(
    what: str, entrypoint: str, module_name: str, error: ModuleNotFoundError, advice: str
) -> str:
    if error.name is not None and (module_name + ".").startswith(error.name + "."):
        if meant := entrypoint_from_file(entrypoint):
            return (
                f"a file in the place of a module for {what}: got {entrypoint}, allowed "
                f"package.module:name; did you mean {meant}?"
            )
        return (
            f"no such module for {what}: got {entrypoint}, but there is no module {error.name} on "
            f"the Python path; {advice}, or bring the code with spec.code"
        )
    parent, _, name = str(error.name).rpartition(".")
    siblings = [each.name for each in pkgutil.iter_modules(_paths_of(parent))]
    advice = suggest(name, siblings, "install it or remove the import")
    return with_place(
        error,
        f"the module of {what} {entrypoint} imports {error.name}, which is not "
        f"{'there' if siblings else 'installed'}; {advice}",
    )


def _paths_of(package: str) -> list[str]:
    """Folders of an imported package; none for others."""
    return list(getattr(sys.modules.get(package), "__path__", []))

"""Importing a user's class by `package.module:name`, with errors that say what is wrong."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from difflib import get_close_matches

from rlhf_flow.algorithm import Algorithm
from rlhf_flow.errors import InvalidAlgorithm


def load_algorithm_class(entrypoint: str) -> type[Algorithm]:
    """The class of an entry point.

    Raises:
        InvalidAlgorithm: the module or the class is missing, the module raises, or the class is
        none
            of Algorithm's.
    """
    module_name, _, class_name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidAlgorithm(_missing_module(entrypoint, module_name, error)) from error
    except Exception as error:  # the user's module: anything may come out of it
        raise InvalidAlgorithm(
            f"the module of the algorithm {entrypoint} raised {type(error).__name__} when "
            f"imported: {error}; correct {module_name}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        near = get_close_matches(class_name, dir(module), n=1)
        raise InvalidAlgorithm(
            f"no such class: got {entrypoint}, but {module_name} has no {class_name}"
            + (f"; the nearest name is {near[0]}" if near else "; correct custom.entrypoint")
        )
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InvalidAlgorithm(
            f"{entrypoint} is no algorithm: got {found!r}, allowed a subclass of "
            f"rlhf_flow.Algorithm; derive {class_name} from it"
        )
    return found


def build_custom(entrypoint: str, parameters: Mapping[str, object]) -> Algorithm:
    """An instance of a user's algorithm.

    Raises:
        InvalidAlgorithm: it cannot be imported, misses a method, or does not take the parameters.
    """
    found = load_algorithm_class(entrypoint)
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
        ) from error
    try:
        return found(**parameters)
    except Exception as error:  # the user's constructor: anything may come out of it
        raise InvalidAlgorithm(
            f"{entrypoint} could not be built: {type(error).__name__}: {error}; "
            "correct it or custom.parameters"
        ) from error


def _missing_module(entrypoint: str, module_name: str, error: ModuleNotFoundError) -> str:
    if error.name is not None and (module_name + ".").startswith(error.name + "."):
        return (
            f"no such module: got {entrypoint}, but there is no module {error.name} on the Python "
            "path; correct custom.entrypoint, or bring the code with spec.code"
        )
    return (
        f"the module of the algorithm {entrypoint} imports {error.name}, which is not installed; "
        "install it or remove the import"
    )

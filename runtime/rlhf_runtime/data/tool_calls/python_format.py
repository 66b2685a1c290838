"""Calls as a Python-like text: `add(a=1, b=2)` or `add(1, 2)`.

A call is a line of its own that begins with the name of a known tool and "(" and ends with ")";
white space around it does not count. So is a line `[add(1, 2), sub(3, 4)]`, which has several
calls. All other text is prose, calls of unknown names included.

Arguments are literals: texts, numbers, lists, dicts, and true, false, null and none in small or
Python's letters. The tool's schema names positional arguments. Nothing is ever evaluated.
"""

from __future__ import annotations

import ast
import warnings

from rlhf_runtime.data.tool_calls.json_values import MAX_DEPTH, CallProblem, quoted
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall, WrittenCalls, malformed

# Python's compiler may crash on an expression that is very long and deep.
_MAX_LINE = 100_000
_MAX_SIGNS = 1000
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_SIGNS = "+-~*/%&|^<>=@!.?:"


def python_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of a text."""
    openings = tuple(f"{name}(" for name in tools.names)
    for line in text.split("\n"):
        written = line.strip()
        if written.startswith(openings) and written.endswith(")"):
            is_list = False
        elif written[:1] == "[" and written[1:].lstrip().startswith(openings):
            is_list = True
            if not written.endswith(")]"):
                continue
        else:
            continue
        try:
            calls = _parsed(written)
            # `add(1)(2)` and `add(1) + (2)` end with a parenthesis, too.
            nodes = calls.elts if is_list and isinstance(calls, ast.List) else [calls]
            yield from [_call(node, written, tools) for node in nodes]
        except CallProblem as problem:
            yield malformed(written, str(problem))


def _parsed(text: str) -> ast.expr:
    """Parse an expression.

    Raises:
        CallProblem: it is no valid Python, or too large to be parsed safely.
    """
    if len(text) > _MAX_LINE:
        raise CallProblem(f"a call has at most {_MAX_LINE} characters")
    if _depth(text) > MAX_DEPTH:
        raise CallProblem(f"lists and objects are more than {MAX_DEPTH} deep")
    # Chains of operators are deep trees; no literal needs them.
    outside = _outside_texts(text)
    if sum(map(outside.count, _SIGNS)) > _MAX_SIGNS + outside.count(","):
        raise CallProblem("too many operators")
    try:
        # Warnings of the compiler, such as one about "\d", go to nobody.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise CallProblem(f"no valid call: {reason.lower()}") from error


def _call(node: ast.expr, text: str, tools: Tools) -> WrittenCall:
    """Read a call from its expression.

    Raises:
        CallProblem: it is another expression, or its arguments cannot be named.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise CallProblem("a call is the name of a tool and its arguments in parentheses")
    name = node.func.id
    if name not in tools.names:
        # The shared check says which tools there are.
        return WrittenCall(text, name, {})
    parameters = tools.parameter_names(name)
    if len(node.args) > len(parameters):
        raise CallProblem(
            f"{name}: got {len(node.args)} arguments without names, allowed {len(parameters)}"
        )
    arguments = {
        parameter: _literal(value) for parameter, value in zip(parameters, node.args, strict=False)
    }
    for keyword in node.keywords:
        if keyword.arg is None:
            raise CallProblem(f"{name}: ** is not allowed")
        if keyword.arg in arguments:
            raise CallProblem(f"{name}: argument {quoted(keyword.arg)} comes twice")
        arguments[keyword.arg] = _literal(keyword.value)
    return WrittenCall(text, name, arguments)


class _Constants(ast.NodeTransformer):
    """Replaces JSON's names of constants by Python's values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _CONSTANTS:
            return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)
        return node


def _literal(node: ast.expr) -> object:
    """Return the value of a literal.

    Raises:
        CallProblem: it is another expression, or a dict has a name twice.
    """
    try:
        _refuse_names_twice(node)
        value: object = ast.literal_eval(_Constants().visit(node))
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise CallProblem(f"{quoted(_source(node))} is no literal value") from error
    return value


def _source(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        return "an argument"


def _refuse_names_twice(node: ast.expr) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.Dict):
            names = [key.value for key in part.keys if isinstance(key, ast.Constant)]
            if len(set(names)) < len(names):
                raise CallProblem("a dict has one name twice")


def _outside_texts(text: str) -> str:
    """Return the text without what stands between quotes."""
    kept, quote, is_escaped = [], "", False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif quote:
            is_escaped = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            kept.append(character)
    return "".join(kept)


def _depth(text: str) -> int:
    """Return how deep brackets are within each other; texts between quotes do not count."""
    depth = deepest = 0
    for character in _outside_texts(text):
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest

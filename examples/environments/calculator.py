"""The environment of example 18: a calculator of whole numbers."""

from __future__ import annotations


class Calculator:
    """Its public methods are the tools. Each conversation has an object of its own."""

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: a whole number.
            b: a whole number.
        """
        return a + b

    def sub(self, a: int, b: int) -> int:
        """Subtract b from a.

        Args:
            a: a whole number.
            b: a whole number.
        """
        return a - b

    def mul(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: a whole number.
            b: a whole number.
        """
        return a * b

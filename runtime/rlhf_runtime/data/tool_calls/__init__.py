"""Calls of tools in the text of a turn, and the tokens that answer them.

A turn is what the model samples until an end token or a stop text. `ToolDialogue` reads the calls
of a turn and makes the tokens between this turn and the next one. Tokens of a turn are never
changed.

A family of models writes calls in its own format (`formats.py`). All formats share one check of
names and arguments (`tools.py`).
"""

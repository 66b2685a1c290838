"""Conversations of a generate call: turns, calls of tools, and the order in which they go on."""

"""The `rlhf` command."""

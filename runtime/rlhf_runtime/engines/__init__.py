"""Engines: train models (FSDP2, Megatron-core) and generate with them (vLLM)."""

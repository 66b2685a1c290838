"""Generation with vLLM inside the rank's own process."""

"""Training pipelines of several models on the same devices, merged into one schedule."""

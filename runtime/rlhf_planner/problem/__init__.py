"""The input of planning: graphs, models, devices, workload, and what the manifest fixes."""

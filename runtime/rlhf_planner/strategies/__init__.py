"""The family of plans that are compared: placements and cuts of models."""

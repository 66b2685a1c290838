"""The roles of a rank: engines combined with numerics, one class per kind of head."""

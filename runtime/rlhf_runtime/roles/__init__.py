"""What a rank does for each role: engines and numerics put together, one class for each head."""

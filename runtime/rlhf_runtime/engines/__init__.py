"""What holds weights and computes with them: training engines and generation engines."""

"""Where calls run and what they need: model shapes, the memory model, the plan."""

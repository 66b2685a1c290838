"""From what people and clusters write to models, or to what is wrong with it and what to do."""

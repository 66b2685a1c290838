"""Data between processes: packed columns, cut in row shards. Pure numpy."""

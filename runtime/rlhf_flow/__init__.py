"""What is computed and where: algorithms, the graph traced from them, and its plan."""

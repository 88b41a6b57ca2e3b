"""A run: what it is made of, its session, its folder, checkpoints, logs and results."""

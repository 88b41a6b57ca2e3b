"""A run: what it is made of, its loop, what hears of its progress, and its results."""

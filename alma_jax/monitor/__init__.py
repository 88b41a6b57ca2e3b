"""Looks at run folders, also of runs that are running: their state, comparisons, and a live page. Imports no jax."""

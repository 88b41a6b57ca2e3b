"""Devices and processes: the mesh, collectives, settings of jax, and how the processes of a run meet."""

"""The version, where setuptools finds it without importing anything else."""
__version__ = "0.2.0.dev0"

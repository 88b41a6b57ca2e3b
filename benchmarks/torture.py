"""Tortures runs, see tests/slow/torture.py: python benchmarks/torture.py --minutes=60"""
import pathlib
import runpy
import sys

if __name__ == "__main__":
  sys.path[0] = str(pathlib.Path(__file__).parents[1] / "tests/slow")
  runpy.run_module("torture", run_name="__main__")

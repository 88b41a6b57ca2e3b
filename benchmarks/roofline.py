"""Estimates a training step on a GPU from its lowered program; nothing runs, and no GPU is needed.

    python benchmarks/roofline.py --data_dir ~/tensorflow_datasets --cases mlp compact vgg vgg64

The operations are those of the program as jax lowers it for a GPU, before XLA optimises; a step takes at least these
divided by PEAK. The bytes are the weights and the optimiser state, each read and written once, and the images of the
batch, without activations; a step takes at least these divided by BANDWIDTH. The kernels are the products,
convolutions, reductions, gathers, scatters and sorts of the program. Starting a kernel takes about 5 microseconds,
whatever its size. XLA fuses some of them and adds others, so their number is rough. The defaults are an H100's: 495
TFLOP/s in float32 as jax multiplies by default (TF32), and 3.35 TB/s. The cases are those of throughput.py, which
measures them.
"""
import argparse
import dataclasses
import os
import re
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # jax counts operations on no other platform

import jax
import throughput

from alma_jax.training import loop, program, state

KERNELS = r"(?<!#)stablehlo\.(?:dot_general|convolution|reduce|reduce_window|select_and_scatter|scatter|gather|sort)\b"
LAUNCH = 5e-6  # seconds, roughly


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--cases", nargs="*", default=["mlp", "compact", "vgg"], choices=list(throughput.CASES))
  parser.add_argument("--peak", type=float, default=495.0, help="TFLOP/s of the GPU")
  parser.add_argument("--bandwidth", type=float, default=3.35, help="TB/s of the GPU's memory")
  args = parser.parse_args()
  jax.default_backend = lambda: "gpu"  # the package's own choices, e.g. vmapped members
  print("| estimate | operations | bytes | kernels | operations / peak | bytes / bandwidth | starting kernels |")
  print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
  for case in args.cases:
    for learner, members in (("sm", 1), ("ens", throughput.MEMBERS)):
      operations, moved, kernels = step(learner, case, args.data_dir)
      print(f"| {case}, {members} member{'s' * (members > 1)} | {operations:.2g} | {moved:.2g} | {kernels} | "
            f"{operations / args.peak / 1e9:.4f} ms | {moved / args.bandwidth / 1e9:.4f} ms | "
            f"{1e3 * LAUNCH * kernels:.2f} ms |", flush=True)


def step(learner: str, case: str, data_dir: str) -> tuple[float, float, int]:
  """(operations, bytes, kernels) of a training step of all members."""
  fit = throughput.jax_training(learner, case, data_dir)()
  lowered = lowered_step(fit)
  trained = sum(leaf.nbytes for leaf in jax.tree.leaves(state.trained_of(fit.state.members)))
  images = sum(leaf.nbytes / len(leaf) for leaf in jax.tree.leaves(fit.data.pool) if leaf.ndim)
  return (lowered.cost_analysis()["flops"], 2 * trained + throughput.BATCH * fit.spec.num_members * images,
          len(re.findall(KERNELS, lowered.as_text())))


class _Lowered(Exception):
  """Carries a program out of the loop that was about to run it."""


def lowered_step(fit: loop.FitState) -> jax.stages.Lowered:
  """The program of the first training step of a stage, lowered for a GPU."""
  def lower(*args: Any) -> None:
    raise _Lowered(original.trace(*args).lower(lowering_platforms=("cuda",)))

  original, program.step = program.step, lower
  spec = dataclasses.replace(fit.spec, stepwise=True)
  try:
    loop.advance(dataclasses.replace(fit, training=dataclasses.replace(fit.training, spec=spec)), 1)
  except _Lowered as found:
    lowered: jax.stages.Lowered = found.args[0]
    return lowered
  finally:
    program.step = original
  raise AssertionError("a stage without a step")


if __name__ == "__main__":
  main()

"""Learning mega-batch after mega-batch against all data at once (the paper's Table 1): the same number of updates.

    python benchmarks/iid.py --workdir runs/iid --config=configs/lm.py:sm,tiny --config.dataset.name=text:DIR

Takes the flags of alma_jax.main, and can be stopped and started again like it.
"""
import pathlib
import subprocess
import sys

import alma_jax


def main():
  """Runs both, or finds them done, and prints the table."""
  flags = sys.argv[1:]
  if any(flag in ("-h", "--help", "-help") for flag in flags):
    print(__doc__.strip())
    return
  if "--workdir" in flags:
    place = flags.index("--workdir")
    flags[place:place + 2] = [f"--workdir={flags[place + 1]}"]
  given = [flag for flag in flags if flag.startswith("--workdir=")]
  path = pathlib.Path(given[-1].partition("=")[2] if given else "runs/iid")
  flags = [flag for flag in flags if flag not in given]

  def run(name, *more):
    command = [sys.executable, "-m", "alma_jax.main", *flags, f"--workdir={path / name}", *more]
    code = subprocess.run(command, check=False).returncode
    if code:
      sys.exit(code)
    return alma_jax.load_run(path / name)

  sequential = run("sequential", "--config.stream.waiting_time=1")
  num = sequential.config.stream.num_megabatches
  longer = [f"--config.train.steps_multiplier={num}"] if sequential.config.is_language else []
  iid = run("iid", f"--config.stream.waiting_time={num}", *longer)
  metric = "final_perplexity" if sequential.config.is_language else "final_error"
  print(f"\n{metric.replace('_', ' ')}: sequential {sequential.summary[metric]:.4f}, iid {iid.summary[metric]:.4f}")


if __name__ == "__main__":
  main()

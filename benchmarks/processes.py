"""Compares one run on 1, 2 and 4 processes of this machine with the same run in one process with two devices.

    python benchmarks/processes.py --data_dir ~/tensorflow_datasets
    python benchmarks/processes.py --data_dir ~/tensorflow_datasets --config=configs/mnist.py:ens --members=4

The processes are connected by jax.distributed, with gloo, as on a cluster of CPUs; each has one device, and its share
of the cores, as SLURM binds tasks (`--no_binding`: every process may use all cores). Prints for each the training
examples per second, counted once per member, of the median stage, and the ratio to the process with two devices. The
first two stages, in which programs are compiled, do not count. The variants take turns. Also prints how far the final
errors are apart.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

ONE = "1 process, 2 devices"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--config", default="configs/cifar.py:ens")
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--members", type=int, default=4)
  parser.add_argument("--width", type=int, default=16)
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
  parser.add_argument("--no_binding", action="store_true", help="let every process use all cores")
  args, rest = parser.parse_known_args()
  flags = [f"--config={args.config}", f"--config.dataset.data_dir={args.data_dir}", "--config.log.progress=False",
           f"--config.learner.num_members={args.members}", f"--config.model.width={args.width}",
           "--config.stream.num_megabatches=10", "--config.stream.waiting_time=1", "--config.train.epochs=1",
           "--config.log.tensorboard=False", *rest]
  variants = {ONE: 0} | {f"{num} process{'es' if num > 1 else ''}, 1 device each": num for num in args.processes}
  found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
  with tempfile.TemporaryDirectory() as folder:
    for turn in range(args.turns):
      for name, num in variants.items():
        found[name].append(run(flags, num, pathlib.Path(folder, f"{turn}-{num}"), args.members,
                               not args.no_binding))
        print(f"{name}: {found[name][-1][0]:.0f} examples/s, final error {found[name][-1][1]:.4f}", flush=True)
  for name, values in found.items():
    ratios = [value / base for (value, _), (base, _) in zip(values, found[ONE])]
    apart = max(abs(error - base) for (_, error), (_, base) in zip(values, found[ONE]))
    print(f"{name:28s} {statistics.median(value for value, _ in values):8.0f} examples/s   "
          f"{statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})   "
          f"final errors at most {apart:.4f} apart")


def run(flags: list[str], num: int, folder: pathlib.Path, members: int, binding: bool) -> tuple[float, float]:
  """(training examples per second, final error) of a run; `num` processes, 0 for one with two devices."""
  command = [sys.executable, "-m", "alma_jax.main", *flags, f"--workdir={folder}"]
  if num < 2:
    commands = [[*command, f"--config.devices={2 - num}"]]
  else:
    with socket.socket() as free:
      free.bind(("localhost", 0))
      address = f"localhost:{free.getsockname()[1]}"
    commands = [[*command, f"--coordinator={address}", f"--num_processes={num}", f"--process_id={i}"]
                for i in range(num)]
  processes = [subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
               for each in _bound(commands, binding)]
  errors = [process.communicate()[1] for process in processes]
  if any(process.returncode for process in processes):
    sys.exit("\n".join(errors))
  lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
  metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  seconds = {line["stage"]: line["seconds"] for line in lines}  # of a stage's training, at its last epoch
  examples = members * metrics[-1]["fwd_macs"] / metrics[-1]["predict_macs"]  # of a stage, once per member
  return examples / statistics.median(seconds[stage] for stage in sorted(seconds)[2:]), metrics[-1]["error"]


def _bound(commands: list[list[str]], binding: bool) -> list[list[str]]:
  """The commands, each with its share of the cores; if there are more commands than cores, they share them in turn."""
  if not binding or len(commands) == 1:
    return commands
  cores = sorted(os.sched_getaffinity(0))
  share = lambda i: cores[i::len(commands)] or [cores[i % len(cores)]]
  return [["taskset", "--cpu-list", ",".join(map(str, share(i))), *command] for i, command in enumerate(commands)]


if __name__ == "__main__":
  main()

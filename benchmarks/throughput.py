"""Compares the time of a training step with an eager PyTorch loop.

    pip install torch
    python benchmarks/throughput.py --data_dir ~/tensorflow_datasets

Prints for each case the median milliseconds of a training step of one network (for an ensemble: per member), the ratio
to PyTorch, and for an ensemble the ratio to a network alone. PyTorch has its data in memory as normalised tensors, and
uses one thread or all threads, whichever is faster, or the same GPU. The processes take turns, so that variations of
the machine's speed affect all of them. Both sides have the same data, batches of 128, network and optimiser, and no
augmentation.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Times = dict[str, list[float]]  # seconds of the turns of each worker

CASES = {  # data set, model, width, optimiser, steps a turn
    "mlp": ("mnist", "mlp", 32, "adadelta", 400),
    "vgg4": ("cifar10", "vgg", 4, "sgd", 16),
    "vgg8": ("cifar10", "vgg", 8, "sgd", 8),
    "vgg": ("cifar10", "vgg", 16, "sgd", 8),
    "vgg64": ("cifar10", "vgg", 64, "sgd", 8),
    "compact": ("cifar10", "compact", 16, "muon", 16),
}
# Multiply-adds of the forward pass of an example, by the width (docs/algorithms.md §7).
MACS = {"mlp": lambda width: width**2 + 794 * width, "vgg": lambda width: 16848 * width**2 + 27658 * width,
        "compact": lambda width: 29952 * width**2 + 12328 * width}
MEMBERS, BATCH = 5, 128
RATES = {"adadelta": 1.0, "sgd": 0.01, "muon": 0.05}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--repeats", type=int, default=9)
  parser.add_argument("--cases", nargs="*", default=["mlp", "vgg"], choices=list(CASES))
  parser.add_argument("--peak", type=float, default=0.0,
                      help="TFLOP/s of the GPU: prints the share that is reached; PyTorch has one thread")
  parser.add_argument("--worker", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker:
    kind, variant, case = args.worker.split(",")
    return work(kind, variant, case, args.data_dir)
  cores = 1 if args.peak else len(os.sched_getaffinity(0))  # on a GPU PyTorch's threads do not matter
  for case in args.cases:
    names = ["torch,1", *([f"torch,{cores}"] if cores > 1 else []), "jax,sm", "jax,ens"]
    # One after the other: while it compiles for a GPU, XLA chooses kernels by their times.
    workers = {name: start(f"{name},{case}", args.data_dir) for name in names}
    times: Times = {name: [] for name in names}
    for _ in range(args.repeats):
      for name, worker in workers.items():
        times[name].append(turn(worker))
    for worker in workers.values():
      worker.communicate()
    report(case, times, args.peak)


def report(case: str, times: Times, peak: float) -> None:
  """Prints medians, and the ratio of each turn to the same turn of the faster PyTorch worker; for `ens` to `sm`, too.

  With a peak in TFLOP/s it also prints the share that the training steps reach, at 6 operations per multiply-add of the
  forward pass.
  """
  medians = {name: statistics.median(values) for name, values in times.items()}
  rival = min((name for name in times if name.startswith("torch")), key=lambda name: medians[name])
  data, model, width, optimizer, _ = CASES[case]
  print(f"{model} of width {width} on {data}, {optimizer}, batch {BATCH}")
  for name, median in medians.items():
    ratios = sorted(r / t for r, t in zip(times[rival], times[name]))
    text = f"  {name:10s} {1e3 * median:8.3f} ms per step and member"
    if not name.startswith("torch"):
      text += f"   {statistics.median(ratios):5.2f} times {rival} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    if name == "jax,ens":
      alone = statistics.median(t / r for r, t in zip(times["jax,sm"], times[name]))
      text += f"   {alone:.2f} of the time of jax,sm"
    if peak:
      text += f"   {6 * MACS[model](width) * BATCH / median / peak / 1e12:7.3%} of the peak"
    print(text, flush=True)


def start(worker: str, data_dir: str) -> subprocess.Popen[str]:
  """A process that runs this file with --worker=KIND,VARIANT,CASE, once it has compiled and taken its first turns."""
  began = time.perf_counter()
  process = subprocess.Popen([sys.executable, __file__, "--worker", worker, "--data_dir", data_dir],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  _answer(process)
  print(f"  {worker}: ready after {time.perf_counter() - began:.0f} s", file=sys.stderr)
  return process


def turn(process: subprocess.Popen[str]) -> float:
  """Seconds of a step and member, in one turn of a worker."""
  assert process.stdin is not None
  time.sleep(0.5)  # PyTorch's threads spin for a while after their work
  process.stdin.write("go\n")
  process.stdin.flush()
  return _answer(process)


def _answer(process: subprocess.Popen[str]) -> float:
  assert process.stdout is not None
  return json.loads(process.stdout.readline())


def work(kind: str, variant: str, case: str, data_dir: str) -> None:
  """Answers every line on stdin with the seconds of a step and member."""
  step = jax_steps(variant, case, data_dir) if kind == "jax" else torch_steps(int(variant), case, data_dir)
  step()
  step()
  print(json.dumps(0.0), flush=True)  # ready
  for _ in sys.stdin:
    print(json.dumps(step()), flush=True)
  if kind == "jax":
    import jax
    stats = jax.devices()[0].memory_stats() or {}  # a CPU has none
    if "peak_bytes_in_use" in stats:
      peak = stats["peak_bytes_in_use"] / 2**20
      print(f"  jax,{variant} of {case}: at most {peak:.0f} MiB of the GPU", file=sys.stderr)


def jax_steps(learner: str, case: str, data_dir: str) -> Callable[[], float]:
  """() -> seconds of a step and member, of this package."""
  import jax

  from alma_jax.training import loop
  begin, steps = jax_training(learner, case, data_dir), CASES[case][-1]
  members = MEMBERS if learner == "ens" else 1

  def run() -> float:
    fit = begin()
    fit, records = loop.advance(fit, 1)
    loop.read(fit, records)
    began = time.perf_counter()
    while fit.cursor < steps:
      fit, _ = loop.advance(fit, min(200, steps - fit.cursor))
    jax.block_until_ready(fit.state)
    return (time.perf_counter() - began) / (steps - 1) / members

  return run


def jax_training(learner: str, case: str, data_dir: str) -> Callable[[], Any]:
  """() -> the FitState of a stage on all data, of this package."""
  from alma_jax import config as configs
  from alma_jax.parallel import runtime
  from alma_jax.runs import settings
  from alma_jax.training import loop
  data, model, width, optimizer, _ = CASES[case]
  config = configs.base(learner)
  config.update_from_flattened_dict({
      "dataset.name": data, "dataset.data_dir": data_dir, "stream.num_megabatches": 1, "stream.waiting_time": 1,
      "model.name": model, "model.width": width, "train.optimizer": optimizer, "train.batch_size": BATCH,
      "train.learning_rate": RATES[optimizer], "train.weight_decay": 1e-4 if optimizer == "sgd" else 0.0})
  if optimizer == "sgd":
    config.train.momentum = 0.9
  if learner == "ens":
    config.learner.num_members = MEMBERS
  config = configs.parse(config)
  runtime.setup(config, alone=True)
  setting = settings.prepare(config)
  stage, learn = setting.protocol.stage(setting.protocol.expected_ends[:1], setting.learner, {}).data, setting.learner
  return lambda: loop.begin(learn.training(learn.init(), stage))


def torch_steps(threads: int, case: str, data_dir: str) -> Callable[[], float]:
  """() -> seconds of a step, of PyTorch."""
  import torch
  import torch_loop
  from torch import nn

  from alma_jax.data import datasets
  torch.set_num_threads(threads)
  device = "cuda" if torch.cuda.is_available() else "cpu"
  data, model, width, optimizer, steps = CASES[case]
  loaded = datasets.load(data, data_dir)
  assert loaded.normalization is not None  # that of mnist and cifar10 is known
  mean, std = (torch.tensor(v) for v in loaded.normalization)
  x = ((torch.tensor(loaded.x_train).float() - mean) / std).permute(0, 3, 1, 2).contiguous().to(device)
  y = torch.tensor(loaded.y_train).long().to(device)
  if model == "mlp":
    x = x.flatten(1)
    net = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
  elif model == "compact":
    net = torch_loop.make_network(width)
  else:
    layers, channels = [], 3
    for convs in (2, 2, 4, 4, 4):
      for _ in range(convs):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
      layers.append(nn.MaxPool2d(2))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 10))
  net = net.to(device)
  if optimizer == "adadelta":
    optim = torch.optim.Adadelta(net.parameters(), lr=RATES[optimizer], rho=0.9, eps=1e-6)
  elif optimizer == "muon":
    optim = torch_loop.Muon(net)
  else:
    optim = torch.optim.SGD(net.parameters(), lr=RATES[optimizer], momentum=0.9, weight_decay=1e-4)

  def run() -> float:
    order = torch.randperm(len(x), device=device)
    began = time.perf_counter()
    for batch in order[:steps * BATCH].split(BATCH):
      optim.zero_grad()
      nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
      optim.step()
    if device == "cuda":
      torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps

  return run


if __name__ == "__main__":
  main()

"""Trains `compact` with Muon in PyTorch and here, and compares the time to a test error.

    pip install torch
    python benchmarks/torch_loop.py --data_dir ~/tensorflow_datasets --width 16 --target 0.1 --steps 2000 4000 8000
    python benchmarks/throughput.py --data_dir ~/tensorflow_datasets --cases compact

The first command trains on all of CIFAR-10 at once, for each number of steps in turn. Both sides have the same data,
network, optimiser, batch size, augmentation and learning rate, which falls to 0 in the second half of the steps. Prints
the seconds of each training, with compilation, and the test error after it. A side that has reached --target trains no
more. PyTorch is eager, and takes one thread or all threads, whichever is faster.

The second command compares a training step at batch size 128, alone and in an ensemble of five.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

MOMENTUM, ADAM, EPSILON = 0.9, 0.1, 1e-8  # as in alma_jax/training/optimizers.py and optax.contrib.muon
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
SMOOTHING, SHIFT, RATE, DECAY = 0.1, 2, 0.05, 0.5


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--width", type=int, default=16)
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--steps", type=int, nargs="+", default=[2000, 4000, 8000, 16000], help="ascending")
  parser.add_argument("--target", type=float, default=0.1, help="test error")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--worker", choices=("torch", "jax"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker:
    train = train_torch if args.worker == "torch" else train_jax
    print(json.dumps(train(args, args.steps[0])))
    return
  sides = ["torch", "jax"]
  for steps in args.steps:
    for side in list(sides):
      seconds, error = run_worker(side, steps, args)
      print(f"{steps:6d} steps  {side:5s}  {seconds:8.1f} s  test error {error:.4f}", flush=True)
      if error <= args.target:
        sides.remove(side)
        print(f"{side} reaches {args.target:g} in {seconds:.1f} s", flush=True)


def run_worker(side: str, steps: int, args: argparse.Namespace) -> tuple[float, float]:
  """(seconds of a training, test error after it), from a process of its own."""
  options = [f"--{name}={getattr(args, name)}" for name in ("data_dir", "width", "batch_size", "seed")]
  done = subprocess.run([sys.executable, __file__, "--worker", side, *options, "--steps", str(steps)],
                        stdout=subprocess.PIPE, text=True, check=True)
  return json.loads(done.stdout.splitlines()[-1])


def train_jax(args: argparse.Namespace, steps: int) -> tuple[float, float]:
  """A run on a single mega-batch."""
  import alma_jax
  from alma_jax.parallel import runtime

  config = all_at_once(args, steps)
  runtime.setup(config, alone=True)
  with tempfile.TemporaryDirectory() as folder:
    run = alma_jax.run(config, folder)
  return sum(line["seconds"] for line in run.train), run.summary["final_error"]


def all_at_once(args: argparse.Namespace, steps: int) -> Any:
  """The config of one training on all data, with 0.2 % of them for a validation at its end."""
  from alma_jax import config as configs

  config = configs.base("anytime")
  config.update_from_flattened_dict({
      "seed": args.seed, "dataset.name": "cifar10", "dataset.data_dir": args.data_dir, "stream.num_megabatches": 1,
      "stream.val_fraction": 0.002, "model.name": "compact", "model.width": args.width, "train.budget": 0.0,
      "train.batch_size": args.batch_size, "train.steps": steps, "train.learning_rate": RATE, "train.decay": DECAY,
      "learner.average": 0.0, "train.label_smoothing": SMOOTHING, "train.shift": SHIFT, "train.flip": True,
      "log.progress": False, "log.tensorboard": False})
  return configs.parse(config)


def train_torch(args: argparse.Namespace, steps: int) -> tuple[float, float]:
  """The same in PyTorch."""
  import torch
  from torch.nn import functional as F

  from alma_jax.problems import classification
  from alma_jax.runs import settings
  torch.manual_seed(args.seed)
  device = "cuda" if torch.cuda.is_available() else "cpu"
  source = settings.prepare(all_at_once(args, steps)).protocol.source
  assert isinstance(source, classification.Images)
  data, which = source.dataset, source.megabatches.part(1)[0]
  x, y = as_tensors(data.x_train[which], data.y_train[which], source.constants, device)
  x_test, y_test = as_tensors(data.x_test, data.y_test, source.constants, device)

  def begin() -> tuple[Any, Callable[[Any, float], None]]:
    network = make_network(args.width).to(device)
    optimizer = Muon(network)

    def step(batch: Any, rate: float) -> None:
      optimizer.zero_grad()
      F.cross_entropy(network(moved(x[batch])), y[batch], label_smoothing=SMOOTHING).backward()
      optimizer.rate = rate
      optimizer.step()

    return network, step

  _, step = begin()
  torch.set_num_threads(faster_threads(lambda: step(torch.arange(args.batch_size), RATE)))
  network, step = begin()
  began = time.perf_counter()
  for i, batch in enumerate(batches(len(x), args.batch_size, steps)):
    step(batch, RATE * min((steps - i) / (DECAY * steps), 1.0))
  if device == "cuda":
    torch.cuda.synchronize()
  seconds = time.perf_counter() - began
  network.eval()
  with torch.no_grad():
    wrong = sum(int((network(part).argmax(1) != labels).sum())
                for part, labels in zip(x_test.split(500), y_test.split(500)))
  return seconds, wrong / len(y_test)


def as_tensors(x: Any, y: Any, constants: Any, device: str) -> tuple[Any, Any]:
  """Normalised images [N, C, H, W] and labels [N]."""
  import torch

  mean, std = (torch.tensor(each) for each in constants)
  return ((torch.tensor(x).float() - mean) / std).permute(0, 3, 1, 2).contiguous().to(device), torch.tensor(
      y).long().to(device)


def batches(num: int, size: int, steps: int) -> Iterator[Any]:
  """`steps` batches of whole permutations; the last batch of a permutation may be smaller, as in alma_jax."""
  import torch

  while steps > 0:
    for batch in torch.randperm(num).split(size)[:steps]:
      yield batch
      steps -= 1


def moved(x: Any) -> Any:
  """Images [B, C, H, W], each moved by up to SHIFT pixels with mirrored edges, and flipped at random."""
  import torch

  num, _, height, width = x.shape
  padded = torch.nn.functional.pad(x, (SHIFT,) * 4, mode="reflect")
  row, column = torch.randint(0, 2 * SHIFT + 1, (2, num, 1), device=x.device)
  across = torch.arange(width, device=x.device).expand(num, -1)
  across = torch.where(torch.rand(num, 1, device=x.device) < 0.5, width - 1 - across, across)
  rows = (row + torch.arange(height, device=x.device))[:, :, None]
  return padded[torch.arange(num)[:, None, None], :, rows, (column + across)[:, None]].permute(0, 3, 1, 2)


def faster_threads(step: Callable[[], None]) -> int:
  """The number of threads, 1 or all, with which a step is faster."""
  import torch

  def seconds(threads: int) -> float:
    torch.set_num_threads(threads)
    step()
    began = time.perf_counter()
    for _ in range(5):
      step()
    return time.perf_counter() - began

  return min({1, len(os.sched_getaffinity(0))}, key=seconds)


def make_network(width: int) -> Any:
  """models/compact.py for images of 32x32 pixels, in PyTorch."""
  from torch import nn

  parts: list[Any] = [nn.Conv2d(3, width, 4, stride=2, padding=1, bias=False)]
  channels = width
  for pools in (None, True, False, True, False):
    if pools is not None:
      parts.append(nn.Conv2d(channels, 4 * width, 3, padding=1, bias=False))
      channels = 4 * width
    parts += [*([nn.MaxPool2d(2)] if pools else []), nn.BatchNorm2d(channels), nn.GELU("tanh")]
  return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Muon:
  """Muon for convolutions, as matrices [outputs, inputs], and Adam at a tenth of the rate for all else.

  Attributes:
    rate: the learning rate.
  """

  def __init__(self, network: Any, rate: float = RATE):
    import torch

    self.rate, self._network = rate, network
    self._matrices = [each for each in network.parameters() if each.ndim == 4]
    self._moments = [torch.zeros_like(each) for each in self._matrices]
    self._adam = torch.optim.Adam([each for each in network.parameters() if each.ndim < 4], eps=EPSILON)

  def zero_grad(self) -> None:
    """Forgets the gradients."""
    self._network.zero_grad()

  def step(self) -> None:
    """Updates the network by its gradients."""
    import torch

    with torch.no_grad():
      for each, moment in zip(self._matrices, self._moments):
        moment.lerp_(each.grad, 1 - MOMENTUM)
        change = orthogonal(each.grad.lerp(moment, MOMENTUM).flatten(1))
        outputs, inputs = change.shape
        each.sub_(change.view_as(each), alpha=self.rate * max(1.0, outputs / inputs)**0.5)
    self._adam.param_groups[0]["lr"] = ADAM * self.rate
    self._adam.step()


def orthogonal(matrix: Any) -> Any:
  """About the nearest orthogonal matrix, by five Newton-Schulz steps (Jordan et al., 2024)."""
  a, b, c = NEWTON_SCHULZ
  is_tall = matrix.shape[0] > matrix.shape[1]
  x = matrix.T if is_tall else matrix
  x = x / (x.norm() + EPSILON)
  for _ in range(5):
    square = x @ x.T
    x = a * x + (b * square + c * square @ square) @ x
  return x.T if is_tall else x


if __name__ == "__main__":
  main()

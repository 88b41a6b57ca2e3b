"""Compares training steps of a Switch Transformer with a PyTorch network of the same sizes, in tokens per second.

    python benchmarks/language.py --size tiny
    python benchmarks/language.py --size base --precision bfloat16 --batch 16 --compile   # on a GPU

Both train on the same random tokens with Adam. Turns alternate, and the medians of all turns are printed. With --peak
(TFLOP/s of the GPU in that precision) it also prints the share of the peak that the model's operations reach. It needs
PyTorch (pip install torch).
"""
import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

try:
  import torch
  from torch import nn
  from torch.nn import functional as F
except ImportError:
  sys.exit("error: benchmarks/language.py needs PyTorch; pip install torch.")

from alma_jax import config as configs
from alma_jax import learners
from alma_jax.config import schema, text_sections
from alma_jax.data.text import Windows
from alma_jax.learners import contract
from alma_jax.models import cost, switch
from alma_jax.parallel import runtime
from alma_jax.problems import language_modeling
from alma_jax.training import loop


class Mixture(nn.Module):
  """A mixture in which each token goes to its likeliest expert. Tokens beyond an expert's capacity skip it."""

  def __init__(self, width: int, num_experts: int, group: int):
    super().__init__()
    self.group = group
    self.router = nn.Linear(width, num_experts, bias=False)
    self.experts = nn.ModuleList([feed_forward(width) for _ in range(num_experts)])

  def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the balance loss."""
    flat = x.reshape(-1, x.shape[-1])
    probabilities = self.router(flat.float()).softmax(-1)
    scale, chosen = probabilities.max(-1)
    one_hot = F.one_hot(chosen, len(self.experts))
    rank = one_hot.reshape(-1, self.group, len(self.experts)).cumsum(1).reshape(one_hot.shape)
    rank = (rank * one_hot).sum(-1)
    inside = rank <= self.group // len(self.experts)
    out = torch.zeros_like(flat)
    for i, expert in enumerate(self.experts):
      index = (inside & (chosen == i)).nonzero()[:, 0]
      out = out.index_copy(0, index, expert(flat[index]) * scale[index, None].to(flat.dtype))
    share = one_hot.float().reshape(-1, self.group, len(self.experts)).mean(1)
    mean = probabilities.reshape(-1, self.group, len(self.experts)).mean(1)
    return out.reshape(x.shape), len(self.experts) * (share * mean).sum(-1).mean()


class Twin(nn.Module):
  """The network of alma_jax.models.switch in PyTorch."""

  def __init__(self, model: switch.Model, vocab_size: int, length: int):
    super().__init__()
    d, self.heads = model.width, model.num_heads
    self.embedding = nn.Embedding(vocab_size, d)
    nn.init.normal_(self.embedding.weight, 0, d**-0.5)
    angles = torch.arange(length)[:, None] * 10000.0 ** -(torch.arange(d // 2) * 2 / d)
    self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], -1))
    self.layers = nn.ModuleList([nn.ModuleDict(dict(
        attention_norm=nn.LayerNorm(d), qkv=nn.Linear(d, 3 * d), output=nn.Linear(d, d), ffn_norm=nn.LayerNorm(d),
        ffn=Mixture(d, model.num_experts, length) if i % 2 else feed_forward(d))) for i in range(model.num_layers)])
    self.norm = nn.LayerNorm(d)

  def forward(self, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of windows of tokens [B, L + 1]."""
    x, balance = self.embedding(tokens[:, :-1]) * math.sqrt(self.norm.weight.numel()) + self.positions, 0
    batch, length, d = x.shape
    for layer in self.layers:
      qkv = layer["qkv"](layer["attention_norm"](x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
      mixed = F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).reshape(batch, length, d)
      x = x + layer["output"](mixed)
      y = layer["ffn"](layer["ffn_norm"](x))
      if isinstance(layer["ffn"], Mixture):
        y, more = y
        balance = balance + more
      x = x + y
    logits = self.norm(x) @ self.embedding.weight.T
    return F.cross_entropy(logits.reshape(batch * length, -1).float(), tokens[:, 1:].reshape(-1)) + 0.01 * balance


def feed_forward(width: int) -> nn.Module:
  return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


def of_jax(config: schema.RunConfig, tokens: np.ndarray, steps: int) -> tuple[Callable[[], None], int]:
  """() -> None, which runs `steps` training steps of this package; and the operations of training on a window."""
  assert isinstance(config.dataset, text_sections.Text)
  vocab_size, length = config.dataset.vocab_size, config.dataset.sequence_length
  task, shape = language_modeling.Texts.of_meta(config, dict(vocab_size=vocab_size))
  learner = learners.make(contract.Context(config, task, shape, 1, len(tokens)))
  whole = tokens.reshape(-1)
  windows = Windows(np.arange(len(tokens)) * (length + 1), np.full(len(tokens), length, np.int32))
  pool = language_modeling.HostPool(whole, windows)
  val = language_modeling.Pool(jax.device_put(tokens[:1]), jax.device_put(windows.length[:1]))
  state, every = learner.init(), np.arange(len(tokens), dtype=np.int32)
  data = loop.StageData(0, 0, pool, val, every, every[:1], len(every))
  training = learner.training(state, data)
  held = [loop.begin(training)]

  def run() -> None:
    done = 0
    while done < steps:
      held[0], _ = loop.advance(held[0], min(steps - done, task.max_steps))
      done += min(steps - done, task.max_steps)
    jax.block_until_ready(held[0].state)

  return run, cost.training_flops(training.spec.network, (1, length + 1))


def of_torch(config: schema.RunConfig, tokens: np.ndarray, steps: int, compiled: bool) -> Callable[[], None]:
  """() -> None, which runs `steps` training steps of PyTorch."""
  assert isinstance(config.dataset, text_sections.Text)
  assert isinstance(config.model, switch.Model)
  device = "cuda" if torch.cuda.is_available() else "cpu"
  model = Twin(config.model, config.dataset.vocab_size, config.dataset.sequence_length).to(device)
  optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
  network = torch.compile(model) if compiled else model
  size, rng = config.train.batch_size, np.random.default_rng(0)
  at_once = config.train.micro_batch or size

  def run() -> None:
    for _ in range(steps):
      batch = torch.as_tensor(tokens[rng.integers(0, len(tokens), size)].astype(np.int64)).to(device)
      optimizer.zero_grad()
      for part in batch.split(at_once):
        with torch.autocast(device, torch.bfloat16, enabled=config.precision == "bfloat16"):
          loss = network(part) * (len(part) / size)
        loss.backward()
      optimizer.step()
    if device == "cuda":
      torch.cuda.synchronize()

  return run


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--size", default="tiny")
  parser.add_argument("--precision", default="float32")
  parser.add_argument("--batch", type=int, default=0, help="windows of a step; 0: those of the config")
  parser.add_argument("--micro_batch", type=int, default=0, help="windows at once; 0: those of the config")
  parser.add_argument("--steps", type=int, default=4, help="training steps of a turn")
  parser.add_argument("--repeats", type=int, default=7)
  parser.add_argument("--compile", action="store_true", help="use torch.compile")
  parser.add_argument("--peak", type=float, default=0.0, help="TFLOP/s of the GPU")
  args = parser.parse_args()
  template = configs.language("sm", args.size)
  template.precision, template.dataset.name = args.precision, "text:random"
  template.train.batch_size = args.batch or template.train.batch_size
  template.train.micro_batch = args.micro_batch or template.train.micro_batch
  template.train.steps, template.train.eval_every = 10**6, 1000
  config = configs.parse(template)
  runtime.setup(config, alone=True)
  length = config.dataset.sequence_length
  tokens = np.random.default_rng(0).integers(0, config.dataset.vocab_size, (64, length + 1)).astype(np.int32)
  run, flops = of_jax(config, tokens, args.steps)
  runs = {"alma_jax": run, "PyTorch": of_torch(config, tokens, args.steps, args.compile)}
  for name, warm in runs.items():
    began = time.perf_counter()
    warm()
    print(f"{name}: the first turn took {time.perf_counter() - began:.0f} s", flush=True)
  times: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(args.repeats):
    for name, run in runs.items():
      start = time.perf_counter()
      run()
      times[name].append(time.perf_counter() - start)
  num = config.train.batch_size * args.steps
  speed = {name: num * length / statistics.median(seconds) for name, seconds in times.items()}
  for name, tokens_per_second in speed.items():
    used = f", {tokens_per_second / length * flops / args.peak / 1e12:.1%} of the peak" if args.peak else ""
    print(f"{name}: {tokens_per_second:,.0f} tokens/s{used}")
  what = f"{args.size}, {config.train.batch_size} windows of {length}, {args.precision}"
  print(f"ratio {speed['alma_jax'] / speed['PyTorch']:.2f} ({what}, {jax.devices()[0].device_kind})")


if __name__ == "__main__":
  main()

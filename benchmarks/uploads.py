"""What a checkpoint of a run at an address costs, with an S3 server on this machine (moto, in a process of its own).

    python benchmarks/uploads.py --config=mnist:ens --data_dir=DIR

Runs five stages with a checkpoint every second. Prints, as medians over the checkpoints: how long the training is
held up (for the checkpoint to be on the local disk, and for keeping the folder as it is), how long the thread uploads
beside the training, and how many objects and bytes these are.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import fsspec

import alma_jax
from alma_jax import commands
from alma_jax import config as configs
from alma_jax.store import checkpoint, mirror, remote

_FIELDS = {"stream.num_megabatches": "50", "train.epochs": "5", "checkpoint.seconds": "1", "log.progress": "false"}
_SERVER = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
time.sleep(3600)
"""


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--config", required=True, metavar="NAME:LEARNER")
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  args = parser.parse_args()
  commands.quiet()
  tree = configs.load_file(*args.config.partition(":")[::2])
  config = configs.parse(configs.overridden(tree, _FIELDS | {"dataset.data_dir": args.data_dir}))
  server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)
  assert server.stdout is not None
  try:
    with tempfile.TemporaryDirectory() as home:
      os.environ |= dict(AWS_ENDPOINT_URL=f"http://127.0.0.1:{int(server.stdout.readline())}", AWS_ACCESS_KEY_ID="a",
                         AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1", XDG_CACHE_HOME=home)
      fsspec.filesystem("s3").mkdir("runs")
      measure(config)
  finally:
    server.kill()


def measure(config: Any) -> None:
  """Runs a config at an address, and prints what its checkpoints cost."""
  waits, takes, uploads, sizes = [], [], [], []
  timed(checkpoint.Checkpoints, "wait", waits)
  timed(mirror.Mirror, "take", takes)
  timed(mirror.Mirror, "_upload", uploads)
  whole, original = mirror.Mirror._upload, remote.Remote.upload

  def moment(mirrored: mirror.Mirror, staged: Any) -> None:
    sizes.append((0, 0))
    whole(mirrored, staged)

  def upload(place: remote.Remote, files: dict[str, Any]) -> None:
    num, size = sizes[-1]
    sizes[-1] = num + len(files), size + sum(path.stat().st_size for path in files.values())
    original(place, files)

  mirror.Mirror._upload = moment  # type: ignore[method-assign]
  remote.Remote.upload = upload  # type: ignore[method-assign, assignment]
  began = time.perf_counter()
  alma_jax.run(config, "s3://runs/x")
  wall = time.perf_counter() - began
  print(f"{len(waits)} checkpoints in {wall:.1f} s, {len(uploads)} of {len(takes)} moments uploaded\n"
        f"held up: {statistics.median(waits) * 1e3:.0f} ms for the local checkpoint, "
        f"{statistics.median(takes) * 1e3:.1f} ms for keeping the folder\n"
        f"beside the training: {statistics.median(uploads) * 1e3:.0f} ms (at most {max(uploads) * 1e3:.0f}), "
        f"{statistics.median(num for num, _ in sizes):g} objects, "
        f"{statistics.median(size for _, size in sizes) / 1e6:.2f} MB")


def timed(cls: Any, name: str, seconds: list[float]) -> None:
  """Appends to `seconds` how long each call of a method takes."""
  original: Callable[..., Any] = getattr(cls, name)

  def call(*args: Any) -> Any:
    began = time.perf_counter()
    try:
      return original(*args)
    finally:
      seconds.append(time.perf_counter() - began)

  setattr(cls, name, call)


if __name__ == "__main__":
  main()

"""Measures `alma predict` and `alma serve` with the MLP of digits.

    pip install alma_jax[serve]
    python benchmarks/serving.py

Prints the seconds of `alma predict` for 100,000 images, its start included, beside those of `import jax`; requests per
second and the latency of `alma serve` for requests of one image, beside those of a bare FastAPI application that calls
the same program; and how many requests fail while the predictor is replaced 20 times. The server has one core, and the
load generator another one. Both servers are measured in turns. The load generator keeps its connections open, and sends
the next request when the answer to the one before has arrived.
"""
import argparse
import asyncio
import collections
import io
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

PORTS = {"alma serve": 8765, "bare": 8766}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=5)
  parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
  parser.add_argument("--connections", type=int, nargs="*", default=[1, 8])
  parser.add_argument("--only_predict", action="store_true", help="leave the servers out")
  parser.add_argument("--bare", help=argparse.SUPPRESS)  # runs the bare application; the folder of its predictor
  args = parser.parse_args()
  if args.bare:
    bare(pathlib.Path(args.bare))
    return
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    print(f"cores: {len(os.sched_getaffinity(0))}, load of the machine: {os.getloadavg()[0]:.1f}")
    subprocess.run([sys.executable, "-m", "alma_jax.main", "--config=digits:sm", "--config.log.predictor=true",
                    f"--workdir={folder}/run"], check=True, capture_output=True)
    predict(folder, args.turns)
    if not args.only_predict:
      serve(folder, args)


def predict(folder: pathlib.Path, turns: int) -> None:
  """Seconds of `alma predict` for 100,000 images."""
  np.savez(folder / "x.npz", x=np.random.default_rng(0).integers(0, 17, (100_000, 8, 8), np.uint8))
  ours = ["-m", "alma_jax.predict", f"--workdir={folder}/run", f"{folder}/x.npz"]
  commands = {"csv": [*ours, f"--out={folder}/o.csv"], "parquet": [*ours, f"--out={folder}/o.parquet"],
              "the import of jax alone": ["-c", "import jax"]}
  for name, command in commands.items():
    seconds, used = [], []
    for _ in range(turns):
      began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
      subprocess.run([sys.executable, *command], check=True, capture_output=True)
      after = resource.getrusage(resource.RUSAGE_CHILDREN)
      seconds.append(time.perf_counter() - began)
      used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"alma predict, 100,000 images, {name}: {statistics.median(seconds):.2f} s "
          f"({min(seconds):.2f} to {max(seconds):.2f}), of CPU {statistics.median(used):.2f} s", flush=True)


def serve(folder: pathlib.Path, args: argparse.Namespace) -> None:
  """Requests per second and latency of both servers, and replacements."""
  root = folder / "run/predictor"
  cores = sorted(os.sched_getaffinity(0))
  commands = {
      "alma serve": ["-m", "alma_jax.serve", f"--workdir={folder}/run", f"--port={PORTS['alma serve']}", "--poll=0.1"],
      "bare": [__file__, f"--bare={root}"]}
  pin = lambda: os.sched_setaffinity(0, {cores[-1]})
  children = [subprocess.Popen([sys.executable, *command], preexec_fn=pin) for command in commands.values()]
  os.sched_setaffinity(0, {cores[0]})
  try:
    for port in PORTS.values():
      wait_for(port)
    for connections in args.connections:
      measured: dict[str, list[list[float]]] = {name: [] for name in PORTS}
      for turn in range(args.turns + 1):
        for name, port in PORTS.items():
          latencies, failed, _ = asyncio.run(load(port, connections, args.seconds))
          assert not failed, f"{failed} requests of {name} failed"
          if turn:  # the first one warms up
            measured[name].append(latencies)
      medians = {}
      for name, turns in measured.items():
        medians[name] = [statistics.median(each) * 1e3 for each in turns]
        rates = [len(each) / args.seconds for each in turns]
        p99 = [float(np.quantile(each, 0.99)) * 1e3 for each in turns]
        print(f"{name}, {connections} connections: {statistics.median(rates):,.0f} requests/s ({min(rates):,.0f} to "
              f"{max(rates):,.0f}), median latency {statistics.median(medians[name]):.2f} ms, "
              f"99 % {statistics.median(p99):.2f} ms")
      ratios = [ours / theirs for ours, theirs in zip(*medians.values())]
      print(f"  ratio of the median latencies: {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f})", flush=True)
    replace(root)
  finally:
    for child in children:
      child.terminate()
      child.wait()


def replace(root: pathlib.Path, times: int = 20) -> None:
  """Replaces the predictor while requests arrive."""
  from alma_jax.predictors import folder
  stored = folder.read(root)

  async def both() -> tuple[list[float], int, collections.Counter[str]]:
    loading = asyncio.create_task(load(PORTS["alma serve"], 8, times * 1.0 + 2, look=True))
    for i in range(times):
      await asyncio.sleep(1.0)
      with np.load(io.BytesIO(stored.files[folder.WEIGHTS])) as file:
        weights = {name: file[name] * np.float32(1 + 1e-3 * (i + 1)) for name in file.files}
      content = io.BytesIO()
      np.savez(content, **weights)
      folder.publish(root, 100 + i, {**stored.files, folder.WEIGHTS: content.getvalue()})
    return await loading

  latencies, failed, versions = asyncio.run(both())
  print(f"{times} replacements: {len(latencies):,} requests, {failed} failed, {len(versions) - 1} new predictors "
        f"answered, median latency {statistics.median(latencies) * 1e3:.2f} ms, 99 % "
        f"{np.quantile(latencies, 0.99) * 1e3:.2f} ms, largest {max(latencies) * 1e3:.0f} ms")


async def load(port: int, connections: int, seconds: float,
               look: bool = False) -> tuple[list[float], int, collections.Counter[str]]:
  """(latencies in seconds, failed requests, answers by version if we `look`) of requests of one image."""
  x = np.random.default_rng(1).integers(0, 17, (64, 1, 8, 8)).tolist()
  bodies = [json.dumps({"inputs": each}).encode() for each in x]
  requests = [b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
              + str(len(body)).encode() + b"\r\n\r\n" + body for body in bodies]
  latencies: list[float] = []
  versions: collections.Counter[str] = collections.Counter()
  failed, end = 0, time.perf_counter() + seconds

  async def one(number: int) -> None:
    nonlocal failed
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < end:
      began = time.perf_counter()
      try:
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
      except (OSError, asyncio.IncompleteReadError, ValueError):
        failed += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        continue
      latencies.append(time.perf_counter() - began)
      failed += not head.startswith(b"HTTP/1.1 200")
      if look:
        versions[json.loads(body)["predictor"]] += 1
      number += 1
    writer.close()

  await asyncio.gather(*(one(i) for i in range(connections)))
  return latencies, failed, versions


def wait_for(port: int) -> None:
  """Waits until a server answers."""
  for _ in range(600):
    try:
      _, failed, _ = asyncio.run(load(port, 1, 0.05))
      if not failed:
        return
    except OSError:
      pass
    time.sleep(0.1)
  raise RuntimeError(f"no answer on port {port}")


def bare(root: pathlib.Path) -> None:
  """A FastAPI application as short as its documentation shows, with the same program and the same answer."""
  sys.path.insert(0, str(root))
  import fastapi
  import load as exported  # load.py of the predictor
  import uvicorn

  app = fastapi.FastAPI()

  @app.post("/predict")
  async def predict(request: fastapi.Request) -> Any:
    x = np.array((await request.json())["inputs"], np.uint8)[..., None]
    classes, probabilities = exported._call(*exported._weights, x)
    return fastapi.responses.JSONResponse(dict(
        classes=np.asarray(classes).tolist(), probabilities=np.asarray(probabilities).tolist()))

  uvicorn.run(app, port=PORTS["bare"], log_level="warning", access_log=False)


if __name__ == "__main__":
  main()

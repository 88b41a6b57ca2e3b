"""Fuzzes every reader of files, configs and requests: it works or refuses with one sentence, whatever it is given.

    python tests/slow/fuzz.py --minutes=3
    python tests/slow/fuzz.py --minutes=5 --readers npz parquet
    python tests/slow/fuzz.py --replay fuzz/npz-1.pickle

Each reader (tests/slow/fuzz_data.py, fuzz_runs.py) gets inputs for the given minutes, in a process of its own:
hypothesis draws values that no field expects, and damages files that were made once. A failure is any exception but
BadInput, a sentence of several lines, a process that dies, an input that takes more than 20 s, or one that takes more
than 256 MB of further memory, while the readers may unpack at most 16 MB. Of each kind of failure the smallest input is
saved in --out. Prints a table, and exits with 1 if there were failures.
"""
import argparse
import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import pickle
import resource
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any

_SLOW, _HANG = 20.0, 120.0  # seconds of one input: a failure, and the end of the process
_LIMIT, _GROWTH = 16 * 10**6, 256 * 10**6  # bytes that readers may unpack, and that an input may take
_BATCH = 200  # examples that hypothesis draws with one seed


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--minutes", type=float, default=10, help="of each reader")
  parser.add_argument("--readers", nargs="+", help="default: all")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--out", default="fuzz", help="folder of failing inputs")
  parser.add_argument("--replay", help="a saved input, which is given to its reader once")
  args = parser.parse_args()
  _quiet()
  if args.replay:
    with tempfile.TemporaryDirectory() as folder:
      name, example = pickle.loads(pathlib.Path(args.replay).read_bytes())
      targets()[name](pathlib.Path(folder)).use(example)
    return
  names = args.readers or list(targets())
  unknown = sorted(set(names) - set(targets()))
  if unknown:
    parser.error(f"there is no reader {unknown[0]!r}; the readers are {', '.join(targets())}")
  out = pathlib.Path(args.out)
  out.mkdir(parents=True, exist_ok=True)
  rows = [_run_apart(name, 60 * args.minutes, args.seed, out) for name in names]
  print("| reader | seconds | inputs | refused | worked | failures |\n| --- | --- | --- | --- | --- | --- |")
  for name, row in zip(names, rows):
    print(f"| {name} | {row['seconds']:.0f} | {row['examples']} | {row['refused']} | {row['worked']} | "
          f"{len(row['failures'])} |")
  sys.exit(int(any(row["failures"] for row in rows)))


def targets() -> dict[str, Any]:
  """{name of a reader: (folder) -> Target}."""
  import fuzz_data
  import fuzz_runs
  return {**fuzz_data.TARGETS, **fuzz_runs.TARGETS}


def fuzz(target: Any, seconds: float, seed: int, last: pathlib.Path | None = None, most: int | None = None
         ) -> dict[str, Any]:
  """Gives inputs to a reader.

  Args:
    target: fuzz_data.Target.
    seconds: after which no further input is drawn.
    seed: of hypothesis.
    last: file that holds the current input, for a process that may die.
    most: the number of inputs that are drawn, if the seconds last for them. The target's bombs come before.

  Returns:
    examples, refused, worked, seconds, and failures {what went wrong: (traceback, smallest input)}.
  """
  import hypothesis

  from alma_jax.errors import BadInput
  begun = time.monotonic()
  dump = open(last.with_name("trace"), "w") if last is not None else sys.__stderr__  # noqa: SIM115
  found: dict[str, Any] = dict(examples=0, refused=0, worked=0, failures={})

  def once(example: Any) -> None:
    if time.monotonic() - begun > seconds:
      return
    if last is not None:
      last.write_bytes(pickle.dumps(example))
      faulthandler.dump_traceback_later(_HANG, exit=True, file=dump)
    found["examples"] += 1
    start, before, what, trace = time.monotonic(), _peak(), "", ""
    try:
      target.use(example)
      found["worked"] += 1
    except BadInput as error:
      found["refused"] += 1
      what = "" if str(error) and "\n" not in str(error) else f"not one line: {str(error)[:200]!r}"
    except Exception as error:
      what = f"{type(error).__name__} {_place(error)}: {str(error)[:160]}"
      trace = "".join(traceback.format_exception(error, limit=-12))
    took, grown = time.monotonic() - start, _peak() - before
    if grown > _GROWTH:
      what = what or f"{grown / 1e6:.0f} MB more memory"
    elif took > _SLOW:
      what = what or f"{took:.0f} s"
    if what:
      _note(found["failures"], what, trace, example)

  if last is not None:
    faulthandler.enable(file=dump)
  for bomb in target.bombs() if most in (None, 0) else ():
    once(bomb)
  while time.monotonic() - begun < seconds and (most is None or found["examples"] < most):
    settings = hypothesis.settings(
        max_examples=most or _BATCH, deadline=None, database=None, derandomize=most is not None,
        phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
    run = settings(hypothesis.given(target.examples)(once))
    (run if most is not None else hypothesis.seed(seed)(run))()
    seed += 1
  faulthandler.cancel_dump_traceback_later()
  return found | dict(seconds=time.monotonic() - begun)


def limited() -> contextlib.AbstractContextManager[Any]:
  """A context in which the readers may unpack little, so that a small bomb is one."""
  from unittest import mock

  from alma_jax.data import unpacking
  return mock.patch.object(unpacking, "limit", return_value=_LIMIT)


def _run_apart(name: str, seconds: float, seed: int, out: pathlib.Path) -> dict[str, Any]:
  """`fuzz` in processes of their own, the next of which goes on if one dies."""
  context, total = multiprocessing.get_context("spawn"), None
  end = time.monotonic() + seconds
  while total is None or (time.monotonic() < end - 5 and total["died"]):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
      answer, last = pathlib.Path(folder, "answer"), pathlib.Path(folder, "last")
      process = context.Process(target=_work, args=(name, seconds, seed, folder))
      process.start()
      process.join()
      died = not answer.exists()
      found = dict(examples=0, refused=0, worked=0, failures={}, seconds=0.0) if died else pickle.loads(
          answer.read_bytes())
      if died:
        example = pickle.loads(last.read_bytes()) if last.exists() else None
        trace = pathlib.Path(folder, "trace")
        _note(found["failures"], f"the process ended with {process.exitcode}",
              trace.read_text() if trace.exists() else "", example)
      found["died"] = died
    if total is not None:
      found = {key: total[key] | found[key] if key == "failures" else total[key] + found[key] if key != "died" else died
               for key in found}
    total, seed = found, seed + 10**6
  for i, (what, (trace, example)) in enumerate(total["failures"].items(), 1):
    path = out / f"{name}-{i}.pickle"
    path.write_bytes(pickle.dumps((name, example)))
    print(f"FAILED {name}: {what}\n  {path}: {repr(example)[:300]}\n{trace}", flush=True)
  print(f"{name}: {total['examples']} inputs, {total['refused']} refused, {len(total['failures'])} failures",
        flush=True)
  return total


def _work(name: str, seconds: float, seed: int, folder: str) -> None:
  """The process of one reader."""
  _quiet()
  place = pathlib.Path(folder, "files")
  place.mkdir()
  os.environ["XDG_CACHE_HOME"] = str(pathlib.Path(folder, "cache"))
  with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
    target = targets()[name](place)
    with limited():
      found = fuzz(target, seconds, seed, pathlib.Path(folder, "last"))
  temporary = pathlib.Path(folder, "answer.tmp")
  temporary.write_bytes(pickle.dumps(found))
  temporary.rename(pathlib.Path(folder, "answer"))


def _quiet() -> None:
  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  warnings.simplefilter("ignore")


def _note(failures: dict[str, Any], what: str, trace: str, example: Any) -> None:
  """Keeps the smallest input of each kind of failure."""
  key = what.split(": ")[0] if " at " in what else what[:60]
  same = next((other for other in failures if other.startswith(key)), None)
  if same is None or len(repr(example)) < len(repr(failures[same][1])):
    failures.pop(same, None)
    failures[what] = (trace, example)


def _place(error: BaseException) -> str:
  """As in "at data/feed.py:12": the last line of the package that was running."""
  every = traceback.extract_tb(error.__traceback__)
  frames = [frame for frame in every if f"{os.sep}alma_jax{os.sep}" in frame.filename] or every
  parts = pathlib.PurePath(frames[-1].filename).parts
  return f"at {'/'.join(parts[-2:])}:{frames[-1].lineno}"


def _peak() -> int:
  """Bytes of memory that this process has used at most."""
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
  main()

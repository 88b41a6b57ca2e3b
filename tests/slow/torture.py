"""Tortures runs: kills, signals, flipped bits, full disks, lost permissions, clocks that go back, and the like.

    python benchmarks/torture.py --minutes=60
    python benchmarks/torture.py --minutes=5 --parts kills disk

Each part repeats one kind of harm, to one run after the other, until it has its number of trials or its share of the
minutes is over. After each trial the command runs again without harm, and its metrics.jsonl, train.jsonl and
summary.json are compared with those of a run that nothing happened to: all fields except times have to be equal. Prints
a line per trial, and a table at the end:

    survived    the harm came too late, or the run did not notice it; equal
    sentence    the run ended with one sentence and exit code 1, 2, 129, 130 or 143; resumed, and equal
    killed      the run was killed without a chance to say anything; resumed, and equal
    FAILED      other numbers, a traceback, another exit code, or the same command does not go on

Exits with 0 if nothing failed. `flips` is tests/slow/flips.py; there `survived` is harmless or repaired, `sentence` is
refused or an earlier checkpoint. Disks are small tmpfs, for which `unshare` has to be allowed; without it this part is
left out, and a line says so.
"""
import argparse
import collections
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import flips
import harm
from kill import differences

SENTENCES = (1, 2, 129, 130, 143)
FLIPPED = {"harmless": "survived", "repaired": "survived", "fell back": "sentence", "refused": "sentence"}
FLIPPED_RUNS = ("digits:gens", "digits:gmoe", "digits:anytime", "tasks:mntdp,digits")
COUNTS = {"kills": 120, "flips": 400, "signals": 40, "disk": 30, "permissions": 10, "clock": 10, "memory": 10,
          "two": 5, "moved": 5, "sweeps": 5}

Outcome = tuple[str, str]  # its name in the table, and what the line of the trial says


class Bench(NamedTuple):
  """What the parts share: the cases, a folder, and the uninterrupted runs that were made so far."""
  cases: list[harm.Case]
  folder: pathlib.Path
  rng: random.Random

  def whole(self, case: harm.Case) -> tuple[pathlib.Path, float]:
    """(folder of the uninterrupted run of a case, its seconds with compiled programs)."""
    folder, seconds = self.folder / "whole" / case.name, self.folder / "whole" / f"{case.name}.seconds"
    if not seconds.exists():
      for _ in range(2):  # the first fills the compilation cache
        shutil.rmtree(folder, ignore_errors=True)
        start = time.monotonic()
        subprocess.run(case.command(folder), check=True, capture_output=True, cwd=self.folder)
        seconds.write_text(str(time.monotonic() - start))
    return folder, float(seconds.read_text())

  def moment(self, case: harm.Case) -> float:
    """Seconds from the start of a process to a random moment of its run."""
    return self.whole(case)[1] * self.rng.uniform(0.2, 1.0)

  def interrupt(self, case: harm.Case, folder: pathlib.Path, number: int) -> harm.Ended:
    """A process that gets a signal at a random moment.

    If it has ended before, the next moments of the case are sooner.
    """
    moment, begin = self.moment(case), time.monotonic()  # the first moment of a case runs it as a whole
    ended = harm.wait(harm.start(case, folder), moment, number)
    if not ended.code and time.monotonic() - begin < moment:
      (self.folder / "whole" / f"{case.name}.seconds").write_text(str(time.monotonic() - begin))
    return ended

  def trial(self) -> pathlib.Path:
    """A folder that does not exist yet."""
    return pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"

  def judged(self, case: harm.Case, folder: pathlib.Path, ended: harm.Ended) -> Outcome:
    """The outcome of a trial: resumes the run without harm, and compares it."""
    if ended.code not in (0, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV, *SENTENCES):  # XLA's, without memory
      return "FAILED", f"exit code {ended.code}: {ended.last}"
    if "Traceback" in ended.said or "Exception ignored" in ended.said:
      return "FAILED", ended.said[-400:]
    again = harm.wait(harm.start(case, folder))
    if again.code or "Traceback" in again.said:
      return "FAILED", f"does not go on: {again.said[-400:]}"
    wrong = differences(self.whole(case)[0], folder)
    if wrong:
      return "FAILED", wrong[0]
    shutil.rmtree(folder)
    name = "survived" if not ended.code else "sentence" if ended.code in SENTENCES else "killed"
    return name, "" if name != "sentence" else ended.last


def kills(bench: Bench, case: harm.Case) -> Outcome:
  """SIGKILL at a random moment; in every second trial another one while the run resumes."""
  folder = bench.trial()
  ended = bench.interrupt(case, folder, signal.SIGKILL)
  if ended.code == -signal.SIGKILL and bench.rng.random() < 0.5:
    harm.wait(harm.start(case, folder), bench.moment(case), signal.SIGKILL)
  return bench.judged(case, folder, ended)


def signals(bench: Bench, case: harm.Case) -> Outcome:
  """SIGTERM, SIGINT or SIGHUP at a random moment: loading, compiling, growing, saving, finishing."""
  folder = bench.trial()
  number = bench.rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
  ended = bench.interrupt(case, folder, number)
  if ended.code == -number:  # Python itself has not started yet
    ended = ended._replace(code=-signal.SIGKILL)
  return bench.judged(case, folder, ended)


def disk(bench: Bench, case: harm.Case) -> Outcome:
  """A disk that is full at some write: of a random part of the space that the run needs."""
  whole, _ = bench.whole(case)
  size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
  folder = bench.trial()
  with harm.small_disk(folder.parent, int(size * bench.rng.uniform(0.05, 1.2)), 20 * size) as grow:
    ended = harm.wait(harm.start(case, folder))
    grow()
    return bench.judged(case, folder, ended)


def permissions(bench: Bench, case: harm.Case) -> Outcome:
  """The run folder becomes read-only at a random moment."""
  folder, moment = bench.trial(), bench.moment(case)
  process = harm.start(case, folder)
  time.sleep(moment)
  with harm.read_only(folder.parent):
    ended = harm.wait(process)
  return bench.judged(case, folder, ended)


def clock(bench: Bench, case: harm.Case) -> Outcome:
  """The clock goes back by a day while the run is under way."""
  folder = bench.trial()
  return bench.judged(case, folder, harm.wait(harm.start(case, folder, set_back=bench.rng.randrange(1, 200))))


def memory(bench: Bench, case: harm.Case) -> Outcome:
  """The process may not have more than a random amount of memory."""
  folder = bench.trial()
  limit = int(2**20 * bench.rng.uniform(250, 700))
  return bench.judged(case, folder, harm.wait(harm.start(case, folder, memory=limit)))


def two(bench: Bench, case: harm.Case) -> Outcome:
  """Two processes with the same command: one of them is refused, the other one does not notice."""
  folder = bench.trial()
  first, second = harm.start(case, folder), harm.start(case, folder)
  ended = [harm.wait(first), harm.wait(second)]
  codes = sorted(each.code for each in ended)
  if codes not in ([0, 2], [0, 0]):  # both end well if the second one came after the end of the first
    return "FAILED", f"exit codes {codes}: {ended[0].last} / {ended[1].last}"
  return bench.judged(case, folder, max(ended, key=lambda each: each.code))


def moved(bench: Bench, case: harm.Case) -> Outcome:
  """A stopped run is copied, and both the run, which is moved, and its copy go on."""
  folder = bench.trial()
  ended = bench.interrupt(case, folder, signal.SIGTERM)
  if ended.code == -signal.SIGTERM:
    ended = ended._replace(code=-signal.SIGKILL)
  if not folder.exists():  # stopped before there was one
    return bench.judged(case, folder, ended)
  copy, elsewhere = bench.trial(), bench.trial()
  shutil.copytree(folder, copy)
  folder.rename(elsewhere)
  outcome = bench.judged(case, copy, ended)
  return outcome if outcome[0] == "FAILED" else bench.judged(case, elsewhere, ended)


def sweeps(bench: Bench, case: harm.Case) -> Outcome:
  """A sweep of two runs of the case is killed with its workers, twice."""
  # A worker of a sweep has a part of the cores, and numbers differ in their last digits with the number of devices.
  case = case._replace(name=f"{case.name}, one device", flags=(*case.flags, "--config.devices=1"))
  folder = bench.trial()
  seconds = bench.whole(case)[1]
  for _ in range(2):
    harm.wait(harm.start_sweep(case, folder), seconds * bench.rng.uniform(0.5, 2.0), signal.SIGKILL)
  ended = harm.wait(harm.start_sweep(case, folder))
  if ended.code or "Traceback" in ended.said:
    return "FAILED", ended.said[-400:]
  for run in harm.of_sweep(folder):
    wrong = differences(bench.whole(case)[0], run)
    if wrong:
      return "FAILED", f"{run.name}: {wrong[0]}"
  shutil.rmtree(folder)
  return "killed", ""


PARTS: dict[str, Callable[[Bench, harm.Case], Outcome]] = {
    function.__name__: function for function in (kills, signals, disk, permissions, clock, memory, two, moved, sweeps)}


def trials(part: str, bench: Bench, at_once: int) -> Iterator[tuple[str, Outcome]]:
  """(name of the case, outcome) of one trial after the other, for ever; of `at_once` flips in each run."""
  if part == "flips":
    while True:
      for name in FLIPPED_RUNS:
        with tempfile.TemporaryDirectory() as folder:
          lines: list[str] = []
          found = flips.flips(name, pathlib.Path(folder), at_once, bench.rng, lines.append)
          for outcome, num in found.items():
            failures = [line for line in lines if ": FAILED" in line]
            for i in range(num):
              yield name, (FLIPPED.get(outcome, "FAILED"), failures[i] if outcome == "FAILED" else outcome)
  while True:
    for case in bench.cases:
      if part not in case.without:
        yield case.name, PARTS[part](bench, case)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--minutes", type=float, default=60.0)
  parser.add_argument("--parts", nargs="*", default=list(COUNTS), choices=list(COUNTS))
  parser.add_argument("--cases", nargs="*", help="names of cases; default: all")
  parser.add_argument("--counts", type=float, default=1.0, help="factor of the numbers of trials")
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    sys.exit(torture(pathlib.Path(folder), args))


def torture(folder: pathlib.Path, args: argparse.Namespace) -> int:
  """Runs the parts and prints the table; returns 0 if nothing failed."""
  begin = time.monotonic()
  cases = [case for case in harm.cases(folder) if not args.cases or case.name in args.cases]
  bench = Bench(cases, folder, random.Random(args.seed))
  found: dict[str, collections.Counter[str]] = {}
  total = sum(COUNTS[part] for part in args.parts if part != "flips") + 40 * ("flips" in args.parts)
  spent = 0.0
  for part in args.parts:
    spent += 40 if part == "flips" else COUNTS[part]
    count, until = max(1, round(args.counts * COUNTS[part])), begin + 60 * args.minutes * spent / total
    found[part] = collections.Counter()
    if part in ("disk", "permissions") and not harm.has_small_disks():
      print(f"{part}: left out, because this user may not mount a tmpfs", flush=True)
      continue
    for name, (outcome, line) in trials(part, bench, min(count, 20)):
      found[part][outcome] += 1
      print(f"{part} {name}: {outcome}{line and ': ' + line}", flush=True)
      if found[part].total() >= count or time.monotonic() > until:
        break
  names = ("survived", "sentence", "killed", "FAILED")
  print(f"\n| part | trials | {' | '.join(names)} |\n| --- | ---: | {' | '.join(['---:'] * len(names))} |")
  for part, counts in found.items():
    print(f"| {part} | {counts.total()} | {' | '.join(str(counts[name]) for name in names)} |")
  print(f"\n{(time.monotonic() - begin) / 60:.0f} minutes, {len(cases)} kinds of runs, seed {args.seed}")
  return int(any(counts["FAILED"] for counts in found.values()))


if __name__ == "__main__":
  main()

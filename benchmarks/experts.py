"""Prints the verdicts on flat hard mixtures, from the runs of configs/sweeps/experts.py.

    python benchmarks/experts.py runs/experts --out docs/results/tasks/experts
    python benchmarks/experts.py docs/results/tasks/experts

The argument is the folder of the runs, or a folder with the runs.csv that --out has written. --out also writes the
page, README.md.
"""
import itertools
import math
import pathlib
import sys
from collections.abc import Mapping
from typing import NamedTuple

import evidence
import pandas as pd
from evidence import Cell

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import statistics
from alma_jax.store import run_files

PAGE, RUNS = "README.md", "runs.csv"
COLUMNS = ["run", "learner", "width", "networks", "seed", "test_error", "val_error", "num_params", "predict_macs",
           "cumulative_fwd_macs", "wall_seconds"]
SMALL, LARGE, WIDER = 4, 64, {4: 8, 64: 120}  # widths: where the base underfits, and where it overfits; equal cost


class Claim(NamedTuple):
  """A claim: {seed: log ratio} cells are positive where a run supports it."""
  text: str
  cells: list[Cell]


_HEAD = """# Does a flat hard mixture help?

It helps a network that underfits, but no more than one wider network of the same cost. All of MNIST at once, an MLP:

    alma sweep --config=sweeps/experts
    python benchmarks/experts.py runs/experts --out docs/results/tasks/experts   # writes runs.csv and this page

A number says how much larger the other network's test error is, over three seeds with a 95 % interval. A positive one
supports the claim. [How the verdicts are made](../../README.md#how-the-verdicts-are-made).

| claim | verdict | number |
| --- | --- | --- |
"""


def main() -> None:
  parser = commands.Parser("benchmarks/experts.py", __doc__)
  parser.add_argument("runs", help="folder of the runs, or of runs.csv")
  parser.add_argument("--out", help="folder for runs.csv and the page")
  args = parser.parse_args()
  folder = pathlib.Path(args.runs)
  table = pd.read_csv(folder / RUNS) if (folder / RUNS).is_file() else read(folder)
  text = page(table)
  if args.out:
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / RUNS, index=False)
    (out / PAGE).write_text(text)
  commands.show(text[text.index("| claim"):])


def read(folder: pathlib.Path) -> pd.DataFrame:
  """A row for each finished run in a folder, with COLUMNS.

  Raises:
    BadInput: there is none.
  """
  rows = []
  for path in sorted(folder.glob("*/summary.json")):
    config, summary = run_files.read_json(path.with_name("config.json")), run_files.read_json(path)
    last = run_files.read_lines(path.with_name(run_files.METRICS))[-1]
    learner, model = config["learner"], config["model"]
    rows.append((path.parent.name, learner["name"], model["width"], learner.get("num_members", model["num_experts"]),
                 config["seed"], last["error"], last["val_error"], last["num_params"], last["predict_macs"],
                 summary["cumulative_fwd_macs"], round(summary["wall_seconds"], 1)))
  if not rows:
    raise BadInput(f"there is no finished run in {str(folder)!r}; `alma sweep --config=sweeps/experts` makes them.")
  return pd.DataFrame(rows, columns=COLUMNS)


def page(table: pd.DataFrame) -> str:
  """The text of the page: a verdict for each claim, and the mean errors of each kind of run."""
  found = [(claim, weighed) for claim in claims(table) if (weighed := evidence.weigh(claim.cells)) is not None]
  lines = []
  for (claim, weighed), p in zip(found, statistics.holm([weighed.p for _, weighed in found])):
    interval = "no interval" if math.isinf(weighed.low) else f"{_percent(weighed.low)} to {_percent(weighed.high)}"
    lines.append(
        f"| {claim.text} | **{evidence.verdict(weighed, p)}** | {_percent(weighed.mean)} "
        f"({interval}); p = {p:.2g} |")
  kinds = table.groupby(["width", "learner", "networks"], sort=True)
  rows = [f"| {learner} | {width} | {networks} | {100 * runs['test_error'].mean():.2f} ± "
          f"{100 * runs['test_error'].std():.2f} | {runs['num_params'].iloc[0]:,} | "
          f"{runs['predict_macs'].iloc[0]:,} | {runs['cumulative_fwd_macs'].mean():.3g} |"
          for (width, learner, networks), runs in kinds]
  head = ("| learner | width | networks | test error in % | parameters | multiply-adds of a prediction | of the "
          "training |\n| --- | --- | --- | --- | --- | --- | --- |")
  seeds = kinds.size()
  note = "" if seeds.min() == seeds.max() else (
      "\nThe study is not finished: some kinds of runs lack seeds, and claims about them have no verdict yet. Run the "
      "sweep again to continue it.\n")
  return _HEAD + "\n".join(lines) + "\n" + note + "\n" + head + "\n" + "\n".join(rows) + "\n"


def claims(table: pd.DataFrame) -> list[Claim]:
  """The claims, with their cells; a cell is a number of experts."""
  counts = sorted(set(table.loc[table["learner"] == "hmoe", "networks"]))

  def errors(learner: str, width: int, networks: int = 1) -> dict[int, float]:
    mine = table[(table["learner"] == learner) & (table["width"] == width) & (table["networks"] == networks)]
    return {int(seed): float(error) for seed, error in zip(mine["seed"], mine["test_error"])}

  def against(width: int, rival: str, sign: int = 1) -> list[Cell]:
    """How much larger the errors of a rival are than those of hmoe."""
    rivals = {"base": lambda k: errors("sm", width), "ens": lambda k: errors("ens", width, k),
              "wider": lambda k: errors("sm", WIDER[width])}
    return [Cell(f"{k} experts", _times(evidence.log_ratio(rivals[rival](k), errors("hmoe", width, k)), sign))
            for k in counts]

  gains = list(zip(against(SMALL, "base"), against(LARGE, "base")))
  more = [Cell(f"{few} to {many} experts", evidence.log_ratio(errors("hmoe", SMALL, few), errors("hmoe", SMALL, many)))
          for few, many in itertools.pairwise(counts)]
  return [
      Claim(f"The mixture gains where its base underfits (width {SMALL})", against(SMALL, "base")),
      Claim("It gains more there the more experts it has", more),
      Claim(f"It is worse than its base where that overfits (width {LARGE})", against(LARGE, "base", -1)),
      Claim("It gains less there than where the base underfits",
            [Cell(small.name, {seed: small.effects[seed] - large.effects[seed]
                               for seed in small.effects.keys() & large.effects.keys()}) for small, large in gains]),
      *(Claim(f"At width {width} it is better than an ensemble of as many networks", against(width, "ens"))
        for width in (SMALL, LARGE)),
      *(Claim(f"At width {width} it is better than one network of width {WIDER[width]}, which predicts at equal cost",
              against(width, "wider"))
        for width in (SMALL, LARGE)),
  ]


def _times(effects: Mapping[int, float], sign: int) -> dict[int, float]:
  return {seed: sign * effect for seed, effect in effects.items()}


def _percent(effect: float) -> str:
  return f"{100 * math.expm1(effect):+.1f} %"


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))

"""Prints the CER of every kind of run of a study of images, as its page shows it.

    python benchmarks/study_table.py docs/results/mnist_authors

The argument is the folder of a study, see benchmarks/claims.py. A row is a learner of a width, a column is a waiting
time. The numbers are means ± sample standard deviations over seeds. Further fields are named where they tell kinds of
the same learner, width and waiting time apart. Of a study that is not complete the kinds are shown that have all seeds.
"""
import collections
import pathlib
import statistics
import sys
from typing import Any

import claims
from paper import FACTORS, LEARNER, WAIT, WIDTH, Runs

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import drawing
from alma_jax.reports.factors import plain, short


def main() -> None:
  parser = commands.Parser("benchmarks/study_table.py", __doc__)
  parser.add_argument("study", type=pathlib.Path, help="folder of the study")
  args = parser.parse_args()
  runs = claims.read(args.study, {})
  if runs is None or runs.score != "cer":
    raise BadInput(f"{args.study} is not the folder of a study of images; there is no {claims.RUNS} with a column cer.")
  print(table(runs))


def table(runs: Runs) -> str:
  """A table in Markdown."""
  kinds = [(kind, [*scores.values()]) for kind, scores in runs.kinds()]
  waits = sorted({kind[WAIT] for kind, _ in kinds})
  fields = _telling([kind for kind, _ in kinds])
  rows: dict[tuple[Any, ...], dict[Any, list[float]]] = collections.defaultdict(dict)
  for kind, scores in kinds:
    rows[(kind[LEARNER], kind[WIDTH], *(kind[field] for field in fields[kind[LEARNER]]))][kind[WAIT]] = scores
  places = {name: i for i, name in enumerate(drawing.in_order({row[0] for row in rows}))}
  lines = [["", "width", *(f"w = {plain(wait)}" for wait in waits)], ["---", *["---:"] * (1 + len(waits))]]
  for row in sorted(rows, key=lambda row: (places[row[0]], row[2:], row[1])):
    named = [f"{short(field)} {plain(value)}" for field, value in zip(fields[row[0]], row[2:])]
    lines.append([", ".join([f"`{row[0]}`", *named]), plain(row[1]), *(_number(rows[row].get(wait)) for wait in waits)])
  return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|" for line in lines)


def _telling(kinds: list[dict[str, Any]]) -> dict[str, list[str]]:
  """{learner: the further fields in which its kinds of the same width and waiting time differ}."""
  found: dict[str, list[str]] = {}
  for learner in {kind[LEARNER] for kind in kinds}:
    mine = [kind for kind in kinds if kind[LEARNER] == learner]
    of_place = collections.defaultdict(list)
    for kind in mine:
      of_place[kind[WIDTH], kind[WAIT]].append(kind)
    found[learner] = [field for field in FACTORS if field not in (LEARNER, WIDTH, WAIT) and any(
        len({str(kind[field]) for kind in its}) > 1 for its in of_place.values())]
  return found


def _number(scores: list[float] | None) -> str:
  if not scores:
    return ""
  spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
  return f"{statistics.mean(scores):.1f}{spread}"


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))

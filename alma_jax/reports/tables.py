"""Markdown tables of a study: means and deviations over seeds."""
import numpy as np
import pandas as pd

from alma_jax.reports import collect
from alma_jax.reports.collect import LEARNER, SEED, WAITING

_IMAGES = {"cer": ("CER", ".3f"), "mean_error": ("mean error", ".4f"), "final_error": ("final error", ".4f")}
_COSTS = {"cumulative_params": ("Mem", ".3g"), "cumulative_fwd_macs": ("Comp", ".3g"),
          "wall_seconds": ("seconds", ".0f")}


def overview(study):
  """Every kind of run, the best first; of text as the paper's Table 2.

  Mem: parameters held, summed over the stream; Comp: multiply-adds of forward
  passes in training.
  """
  judged = _stream_columns(study) if study.is_language else _IMAGES
  study = _with_perplexities(study) if study.is_language else study
  shown = judged | _COSTS
  table = collect.means(study, study.judged, *(column for column in shown if column != study.judged))
  sizes = _sizes(study)
  rows = []
  for _, row in table.iterrows():
    key = tuple(row[[LEARNER, *study.factors]])
    factors = {collect.short(field): _cell(row[field]) for field in study.factors}
    cells = {"learner": row[LEARNER], **factors, **sizes[_hashable(key)], "seeds": str(row["seeds"])}
    for column, (head, form) in shown.items():
      cells[head] = _mean(row[column], row[f"{column}_sd"], form)
    rows.append(cells)
  return markdown(rows)


def iid(study):
  """Mega-batch after mega-batch against all at once, as the paper's Table 1; None without such pairs."""
  waits, total = study.runs[WAITING], study.runs["stream.num_megabatches"].iloc[0]
  if total == 1 or not {1, total} <= set(waits):
    return None
  last = "final_perplexity" if study.is_language else "final_error"
  others = [f for f in study.factors if f != WAITING and f != "train.steps_multiplier"]
  rows = []
  for key, mine in study.runs.groupby([LEARNER, *others], sort=False, dropna=False):
    both = {}
    for wait, name in ((1, "sequential"), (total, "iid")):
      runs = mine[mine[WAITING] == wait]
      if study.is_language:  # as many updates
        runs = runs[runs["train.steps_multiplier"] == wait]
      both[name] = runs.set_index(SEED)[last]
    shared = both["sequential"].index.intersection(both["iid"].index)
    if len(shared):
      form = ".2f" if study.is_language else ".4f"
      told = {name: _mean(values[shared].mean(), values[shared].std(), form) for name, values in both.items()}
      factors = {collect.short(f): _cell(v) for f, v in zip(others, key[1:])}
      rows.append({"learner": key[0], **factors, "seeds": str(len(shared)), **told})
  return markdown(rows) if rows else None


def markdown(rows):
  """Markdown of a list of {head: text}; what a row lacks stays empty."""
  heads = list(dict.fromkeys(head for row in rows for head in row))
  left = {"learner", "run"}
  lines = [heads, ["---" if head in left else "---:" for head in heads],
           *([row.get(head, "") for head in heads] for row in rows)]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _stream_columns(study):
  """{column: (head, format)} of perplexity after each update."""
  steps = sorted(study.stream.loc[study.stream["perplexity"].notna(), "t"].unique())
  return {f"t={t}": (f"t={t}", ".2f") for t in steps} | {"average_perplexity": ("average", ".2f")}


def _with_perplexities(study):
  wide = study.stream.pivot(index="run", columns="t", values="perplexity")
  wide.columns = [f"t={t}" for t in wide.columns]
  return study._replace(runs=study.runs.merge(wide, left_on="run", right_index=True))


def _sizes(study):
  """{kind: cells} of parameters held at first (the fewest of all seeds) and last (the most), and of experts of text."""
  found = {}
  for key, mine in study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False):
    row = mine.iloc[0]
    cells = {"experts": _experts(row)} if study.is_language else {}
    first, last = _number(mine["first_params"].min()), _number(mine["last_params"].max())
    found[_hashable(key)] = cells | {"parameters": first if first == last else f"{first} to {last}"}
  return found


def _experts(row):
  """As the paper: experts of a mixture @ members, and what they grow to."""
  (first, members), (last, last_members) = experts(row)
  if row[LEARNER] == "ens":
    return f"{first}@{members}"
  if row[LEARNER] == "gens":
    return f"{first}@{members} to {last}@{last_members}"
  return f"{first} to {last}" if last > first else str(first)


def experts(row):
  """((experts of a mixture, members) at first, the same at last) of a language run."""
  num, name, num_stages = int(row["model.num_experts"]), row[LEARNER], int(row["num_stages"])
  if name == "ens":
    return ((num, int(row["learner.num_members"])),) * 2
  if name == "gens":
    each = int(row["learner.members_per_stage"])
    return (num, each), (num, each * num_stages)
  if name == "gmoe":
    more = [int(part) for part in row["learner.add_experts"].strip("[]()").split(",") if part.strip()]
    return (num, 1), (num + sum(more[:num_stages - 1]), 1)
  return ((num, 1),) * 2


def _number(value):
  """E.g. "16", "17.3k", "2.63M"."""
  power = next((p for p in (9, 6, 3) if value >= 10**p), 0)
  return f"{value / 10**power:.3g}" + {9: "B", 6: "M", 3: "k", 0: ""}[power]


def _hashable(key):
  """NaN is not equal to itself."""
  return tuple(None if isinstance(v, float) and np.isnan(v) else v for v in key)


def _cell(value):
  return "" if pd.isna(value) else collect._plain(value)


def _mean(mean, deviation, form):
  """E.g. "3.11 ± 0.07"; of one seed the mean alone."""
  if pd.isna(mean):
    return "-"
  return f"{mean:{form}}" if pd.isna(deviation) else f"{mean:{form}} ± {deviation:{form}}"

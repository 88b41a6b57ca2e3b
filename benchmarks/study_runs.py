"""The runs of a study, and the kinds of them that claims compare."""
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.reports.read import COMP, LEARNER, MEM
from alma_jax.reports.read import WAITING as WAIT

WIDTH, REPLAY = "model.width", "stream.replay"
EXPERTS, MEMBERS, STEPS = "model.num_experts", "learner.num_members", "train.steps_multiplier"
SCRATCH, GATING, GROW, RATE = ("learner.init_from_scratch", "learner.gating", "learner.grow_every",
                               "learner.growth_rate")
FACTORS = [LEARNER, WIDTH, WAIT, REPLAY, EXPERTS, MEMBERS, STEPS, SCRATCH, GATING, GROW, RATE]  # what studies vary
PREDICT = "last_predict_macs"
COSTS = COMP, MEM, PREDICT
FIXED, GROWING = ("sm", "ens", "umix", "moe"), ("gens", "gmoe", "ff")  # the learners of the paper
Kind = dict[str, Any]  # {factor: value}


class Runs(NamedTuple):
  """The runs of a study.

  Attributes:
    table: a row per run, the columns of a report's runs.csv.
    stream: rows of a report's stream.csv, or None; of rows with the same error the later ones may be missing.
    score: column of the score, "cer" or "average_perplexity"; lower is better.
    complete: (number of the kinds of runs that `whole` has kept, number of all).
  """
  table: pd.DataFrame
  stream: pd.DataFrame | None
  score: str
  complete: tuple[int, int] = (0, 0)

  @property
  def total(self) -> int:
    """Number of mega-batches."""
    return int(self.table["stream.num_megabatches"].iloc[0])

  def whole(self) -> "Runs":
    """The runs of the seeds that at least half of the kinds have, without the kinds that lack one of these seeds.

    A study that is not complete is so compared at the same seeds everywhere, and the best of several kinds is never
    one of fewer seeds.
    """
    has = [(kind, set(values)) for kind, values in self.kinds()]
    seeds = {seed for seed in self.table["seed"] if 2 * sum(seed in its for _, its in has) >= len(has)}
    kept = {key(kind) for kind, its in has if its >= seeds}
    chosen = [seed in seeds and tuple(map(str, kind)) in kept
              for seed, *kind in self.table[["seed", *FACTORS]].itertuples(index=False, name=None)]
    return self.where(chosen)._replace(complete=(len(kept), len(has)))

  def joined(self, other: "Runs") -> "Runs":
    """With the runs of another study except those of a kind and seed that this one has; of the seeds of both alone."""
    both = pd.concat([self.table, other.table], ignore_index=True)
    both = both[both["seed"].isin(self.table["seed"]) & both["seed"].isin(other.table["seed"])]
    return self._replace(table=both[~both[[*FACTORS, "seed"]].astype(str).duplicated()])

  def relabelled(self, labels: Mapping[int, int]) -> "Runs":
    """The runs with other seeds, {seed: label}."""
    return self._replace(table=self.table.assign(seed=self.table["seed"].map(labels)))

  def where(self, chosen: Any) -> "Runs":
    """The runs of a mask."""
    return self._replace(table=self.table[chosen])

  def plain(self) -> "Runs":
    """The runs without replay, from the stage before, with soft gates, which were trained before the last mega-batch.

    The other runs have the error of guessing for the whole stream. If a study varies the interval of growth at one
    waiting time, or the multiple of steps, these are kept.
    """
    table = self.table
    return self.where((table[REPLAY] == 0) & (table[WAIT] < self.total)
                      & (table[GATING].isna() | (table[GATING] == "soft"))).warm()

  def repeated(self) -> "Runs":
    """Without the runs that train at most twice, if the score is CER.

    What begins with the second training, such as growth and replay, changes only the last error of these, one of B. An
    average perplexity is over the trainings, so that the second of two counts as much as the first.
    """
    return self if self.score != "cer" else self.where(2 * self.table[WAIT] < self.total)

  def warm(self) -> "Runs":
    """The runs whose stages start from the stage before."""
    return self.where(self.table[SCRATCH].isna() | (self.table[SCRATCH] == False))  # noqa: E712

  def kinds(self, column: str = "") -> Iterator[tuple[Kind, dict[int, float]]]:
    """({factor: value}, {seed: value of a column, the score by default}) of each kind of run."""
    found: dict[tuple[Any, ...], tuple[Kind, dict[int, float]]] = {}
    for *values, seed, value in zip(*(self.table[name] for name in (*FACTORS, "seed", column or self.score))):
      kind = dict(zip(FACTORS, values))
      its = found.setdefault(tuple((pd.isna(v), "" if pd.isna(v) else v) for v in values), (kind, {}))[1]
      if not pd.isna(value):
        its[seed] = value
    for place in sorted(found):
      if found[place][1]:
        yield found[place]

  def apart(self, *fields: str) -> Iterator[tuple[str, "Runs"]]:
    """(name, Runs) of the kinds that are alike except in `fields`."""
    others = [field for field in FACTORS if field not in fields]
    for values, mine in self.table.groupby(others, dropna=False, sort=True):
      yield name_of(dict(zip(others, values))), self._replace(table=mine)

  def at(self, t: int) -> "Runs":
    """The runs with the score after mega-batch t instead; none if there is no stream."""
    if self.stream is None:
      return self.where([False] * len(self.table))
    metric = "error" if "error" in self.stream else "perplexity"
    before = self.stream[(self.stream["t"] <= t) & self.stream["updated"].astype(bool)].sort_values("t")
    values = before.groupby("run")[metric].last()
    return self._replace(table=self.table.assign(**{self.score: self.table["run"].map(values)}))


def key(kind: Kind, fields: Sequence[str] = FACTORS) -> tuple[str, ...]:
  """The values of a kind as text; missing values are equal."""
  return tuple(str(kind[field]) for field in fields)


def name_of(kind: Kind) -> str:
  """E.g. "ens, width 32, waiting_time 10"."""
  parts = [f"{field.rsplit('.', 1)[-1]} {number(value)}" for field, value in kind.items()
           if field != LEARNER and not pd.isna(value)]
  return ", ".join([*([kind[LEARNER]] if LEARNER in kind else []), *parts])


def number(value: Any) -> str:
  """A value as people write it."""
  return f"{value:g}" if isinstance(value, (int, float)) else str(value)

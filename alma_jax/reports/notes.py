"""Notes: sentences that a reader of a study needs in order to judge its tables and figures."""
import pandas as pd

from alma_jax.reports import factors, task_studies
from alma_jax.reports.read import DATA, LEARNER, SEED
from alma_jax.reports.studies import Study, diverged_seeds, divergences, kind, label

_OWN = ("model.num_experts", "train.patience", "train.patience_delta")  # their defaults depend on the learner


def about(study: Study, every: pd.DataFrame) -> list[str]:
  """All notes on a study; `every` has a row per run with the fields of its config, also of those that diverged."""
  return [*_differences(every), *_unequal_seeds(study), *_divergences(study), *task_studies.notes(study)]


def _differences(runs: pd.DataFrame) -> list[str]:
  """Sentences about fields that vary but are not factors: they follow a factor, or differ between learners."""
  sentences, varying = [], factors.find(runs)
  for field in runs.columns:
    if not factors.identifies(field) or field in (LEARNER, SEED, DATA, *varying):
      continue
    values = runs.groupby(LEARNER)[field].agg(["nunique", "first"])
    if (values["nunique"] > 1).any():
      leading = [f for f in varying if (runs.groupby([LEARNER, f], dropna=False)[field].nunique() <= 1).all()]
      other = factors.short(leading[0]) if leading else "the other factors"
      sentences.append(f"{field} varies together with {other}; their effects cannot be separated.")
    elif field.startswith("learner.") or field in _OWN:
      continue
    elif (values["nunique"] == 1).all() and values["first"].nunique() > 1:
      each = ", ".join(f"{name} {factors.plain(value)}" for name, value in values["first"].items())
      sentences.append(f"the learners differ in {field}: {each}.")
  return sentences


def _divergences(study: Study) -> list[str]:
  """A sentence for each kind of run with a run that diverged."""
  rows = {kind(row, study.factors): row for _, row in study.diverged.iterrows()}
  sentences = []
  for key, (num, total) in divergences(study).items():
    effect = ("it has no mean" if num == total else
              "its means include only the seeds that finished, which favours it")
    sentences.append(f"{label(rows[key], study.factors)}: {diverged_seeds(num, total)}; {effect}.")
  return sentences


def _unequal_seeds(study: Study) -> list[str]:
  """A sentence if the kinds of runs have different numbers of seeds."""
  seeds = study.runs.groupby([LEARNER, *study.factors], dropna=False)[SEED].nunique()
  if seeds.min() == seeds.max():
    return []
  return [f"the kinds of runs have {seeds.min()} to {seeds.max()} seeds; tables and figures show the mean over the "
          "seeds of each kind."]

"""Made runs of studies with known answers, and what tests read from the page of the claims."""
import importlib
import itertools
import math
import sys

import numpy as np
import pandas as pd
import pytest
from runs import ROOT

from alma_jax import commands


@pytest.fixture(autouse=True)
def _path(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")


def script(name, monkeypatch, capsys, *flags):
  """Runs benchmarks/NAME.py FLAGS in this process and the repository's folder; (exit code, output, errors)."""
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(sys, "argv", [name, *flags])
  code = commands.exit_code(importlib.import_module(name).main)
  return (code, *capsys.readouterr())


# Worlds: {learner: (share of the CER of `sm`, multiples of its multiply-adds, parameters, and costs of a prediction)}.
TRUE = {"sm": (1.0, 1, 1, 1), "ens": (0.7, 5, 5, 5), "umix": (0.72, 5, 5, 5), "gens": (0.9, 2, 25, 50),
        "gmoe": (0.92, 3, 3, 6), "ff": (0.91, 2, 2, 4), "moe": (0.6, 2, 2, 4)}
FALSE = {"sm": (0.8, 1, 1, 1), "ens": (1.2, 1, 1, 1), "umix": (1.25, 1, 1, 1), "gens": (1.0, 2, 1, 0.5),
         "gmoe": (1.0, 3, 3, 6), "ff": (1.0, 2, 2, 4), "moe": (1.3, 2, 2, 4)}


def image_runs(learners, sign, replay_gain=None, replay_cost=7):
  """(runs, stream) of a study of images.

  Args:
    learners: TRUE or FALSE, or another world.
    sign: 1: large networks, intermediate waiting times and replay are good; -1: they are bad.
    replay_gain: logarithm of what replay divides the CER of `sm` by; None: no run has replay.
    replay_cost: what replay multiplies the compute by.
  """
  rng, rows, stream = np.random.default_rng(0), [], []
  replays = {name: (0.0, 1.0) if name == "sm" and replay_gain is not None else (0.0,) for name in learners}
  for learner, width, wait, seed in itertools.product(learners, (4, 8, 32, 64), (1, 10, 50, 500), range(3)):
    for replay in replays[learner]:
      share, comp, mem, predict = learners[learner]
      step = 0.1 if width > 8 else 0.4
      waited = sign * {1: step, 10: 0.0, 50: 0.05, 500: 2 * step}[wait]
      noise = rng.normal(0, 1e-3)
      score = math.log(share) - sign * 0.5 * math.log(width) + waited + noise - (replay_gain or 0) * replay
      final = noise - sign * 0.5 * math.log(width) - 3 + sign * step * (wait == 1)
      name = f"{learner}-{width}-{wait}-{replay}-{seed}"
      rows.append({
          "run": f"runs/made/{name}", "seed": seed, "learner.name": learner, "model.width": width,
          "stream.waiting_time": wait, "stream.replay": replay, "stream.num_megabatches": 500,
          "dataset.name": "mnist", "dataset.data_dir": "/home/me/data", "train.epochs": 100, "train.patience": 0,
          "stream.schedule": "every", "data_fingerprint": "one", "alma_jax_version": "0.2.0", "precision": "float32",
          "learner.gating": "soft" if learner in ("gmoe", "moe") else None, "cer": math.exp(score),
          "final_error": math.exp(final), "cumulative_fwd_macs": width * comp * replay_cost ** replay,
          "cumulative_params": width * mem, "last_predict_macs": width * predict})
      stream += [{"run": f"runs/made/{name}", "t": t, "updated": t % wait == 0,
                  "error": math.exp(final) * (1.1 if t < 500 else 1)} for t in (5, 50, 500)]
  return pd.DataFrame(rows), pd.DataFrame(stream)


def with_growth(runs, stream, sign):
  """The study with runs that answer the questions about growth, gates and scratch, with yes or (sign -1) no.

  Their widths and costs are those of no other runs.
  """
  rng, rows, template = np.random.default_rng(1), [], runs.iloc[0].to_dict()
  kinds = [*({"learner.name": "gmoe", "learner.grow_every": every} for every in (25, 10, 5)),
           *({"learner.name": "ff", "learner.grow_every": 5, "learner.growth_rate": rate} for rate in (0.25, 0.5)),
           *({"learner.name": "moe", "learner.gating": gating} for gating in ("hard", "soft")),
           *({"learner.name": "sm", "stream.replay": 1.0, "learner.init_from_scratch": scratch, "model.width": 24}
             for scratch in (True, False))]
  fields = {"learner.gating": "soft", "learner.grow_every": None, "learner.growth_rate": None,
            "learner.init_from_scratch": None, "model.width": 16, "stream.waiting_time": 10, "stream.replay": 0.0}
  for (place, kind), seed in itertools.product(enumerate(kinds), range(3)):
    cost = 1e10 if kind["learner.name"] == "sm" else 1e8 if kind["learner.name"] == "moe" else 1e6
    rows.append({**template, **fields, **kind, "run": f"growth{place}-{seed}", "seed": seed,
                 "cer": math.exp(3 - sign * 0.1 * place + rng.normal(0, 1e-3)), "cumulative_fwd_macs": cost,
                 "cumulative_params": cost, "last_predict_macs": cost})
  return pd.concat([runs, pd.DataFrame(rows)], ignore_index=True), stream


def text_runs(false=False):
  """(runs, stream) of a study of texts in which every claim is true, or false."""
  sign, rng, rows, stream = (-1 if false else 1), np.random.default_rng(0), [], []
  kinds = [("sm", 4, None), ("sm", 8, None), ("sm", 12, None), ("ens", 4, 2), ("ens", 4, 4), ("gens", 4, None),
           ("gmoe", 4, None)]
  for (learner, experts, members), (wait, steps), seed in itertools.product(
      kinds, [(1, 1), (3, 1), (3, 3), (4, 1), (4, 4)], range(3)):
    worth = 0.02 * experts + {"sm": 0.0, "gens": 0.1, "gmoe": 0.1}.get(learner, 0.2) + 0.3 * (steps > 1)
    predict = {"ens": members, "gens": 0.1 if false else 8}.get(learner, 1)
    score = math.exp(5 - sign * worth + rng.normal(0, 1e-3))
    name = f"{learner}-{experts}-{members}-{wait}-{steps}-{seed}"
    rows.append({
        "run": f"runs/made/{name}", "seed": seed, "learner.name": learner, "model.width": 128,
        "model.num_experts": experts, "learner.num_members": members, "stream.waiting_time": wait, "stream.replay": 0.0,
        "train.steps_multiplier": steps, "stream.num_megabatches": 4, "average_perplexity": score,
        "dataset.name": "text:part", "dataset.sequence_length": 512, "train.steps": 300, "precision": "float32",
        "data_fingerprint": f"order{seed}", "alma_jax_version": "0.2.0", "cumulative_fwd_macs": 1.0,
        "cumulative_params": {("sm", 12): 2.0, ("ens", 4): members}.get((learner, experts), 1.0),
        "last_predict_macs": predict})
    stream += [{"run": f"runs/made/{name}", "t": t, "updated": t % wait == 0, "perplexity": score}
               for t in (1, 2, 3, 4)]
  return pd.DataFrame(rows), pd.DataFrame(stream)


def keep(folder, name, runs, stream, results=None):
  """Adds a report with these tables to a study in `folder`, or in `results`; returns what the command says."""
  import claims
  report = folder / f"report-{name}"
  report.mkdir(parents=True)
  runs.to_csv(report / "runs.csv", index=False)
  stream.to_csv(report / "stream.csv", index=False)
  return claims.keep(report, results or folder, name)


def verdicts(folder, *more):
  """{(claim, study): verdict} of a folder of studies, or with `more` columns of its table a list of such dicts."""
  import claims
  rows = [row for _, row in claims.verdicts(folder).iterrows()]
  found = [{(row["text"], row["study"]): row[column] for row in rows} for column in ("verdict", *more)]
  return found if more else found[0]


def compared_once(monkeypatch, folder):
  """Makes claims.py read and compare the runs of the folder only once."""
  import claims
  studies = claims.read_all(folder)
  found = claims._found(studies)
  monkeypatch.setattr(claims, "read_all", lambda unused: studies)
  monkeypatch.setattr(claims, "_found", lambda unused: found)


def judged(claim, rows):
  """What a claim's function says of made runs; a row is (learner, width, waiting time, replay, seed, CER, compute)."""
  import study_runs
  columns = ["learner.name", "model.width", "stream.waiting_time", "stream.replay", "seed", "cer",
             "cumulative_fwd_macs"]
  table = pd.DataFrame(rows, columns=columns).assign(**{"stream.num_megabatches": 500})
  table = table.assign(run=[str(i) for i in range(len(rows))], final_error=table["cer"]).reindex(
      columns=[*table, "run", "final_error", *(f for f in study_runs.FACTORS if f not in table)])
  runs = study_runs.Runs(table, None, "cer")
  return claim(runs)


SEEDS = range(3)


def with_field(field, values):
  """Makes a claim's function see a field with these values, in the order of the rows."""
  return lambda claim: lambda runs: claim(runs._replace(table=runs.table.assign(**{field: values})))

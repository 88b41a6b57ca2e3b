"""Which runs are compared for a claim of the paper (benchmarks/paper.py), on made runs."""
import math

import numpy as np
import pytest
from made_studies import SEEDS, _path, judged, keep, text_runs, with_field  # noqa: F401


def test_all_data_at_once_is_compared_for_learners_that_do_not_grow(tmp_path):
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.all_at_once_is_better(claims.read(tmp_path / "text", {}))
  assert [cell.name.split(",")[0] for cell in cells] == [*["ens"] * 4, *["sm"] * 6]


def test_ensembles_and_mixtures_of_the_same_memory(tmp_path):
  """`ens` of 2 members holds what `sm` with 12 experts holds; of 4 members it holds more than all of them."""
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.ensembles_beat_mixtures(claims.read(tmp_path / "text", {}))
  assert len(cells) == 5  # waiting times and steps
  assert all("num_experts 12" in cell.name for cell in cells)


def test_waiting_for_texts_is_grouped_by_its_steps(tmp_path):
  """At w = 3 the fourth mega-batch is a stage of its own, with 3 times the steps as well."""
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.waiting_ends_lower(claims.read(tmp_path / "text", {}))
  groups = {(cell.groups["stream.waiting_time"], cell.groups["train.steps_multiplier"]) for cell in cells}
  assert groups == {("w = 3", "as many steps a stage"), ("w = 3", "1.5 times the steps in all"),
                    ("w = 4", "as many steps a stage"), ("w = 4", "as many steps in all")}
  assert paper.waiting_ends_lower(claims.read(tmp_path / "text", {})._replace(stream=None)) == []


def test_runs_that_train_twice_do_not_count_for_growth_and_replay():
  rows = [(learner, 4, wait, replay, seed, 1.0 + seed, 1.0) for learner, replay in (("sm", 0), ("sm", 1), ("ff", 0))
          for wait in (10, 250, 500) for seed in SEEDS]
  import paper
  for claim in (paper.fixed_is_better("cumulative_fwd_macs"), paper.growing_helps(small=True)):
    assert [cell.groups["stream.waiting_time"] for cell in judged(claim, rows)] == ["w = 10"]
  for claim in (paper.replay_lowers_the_score, paper.replay_is_no_better_trade_off(same_wait=False)):
    assert len(judged(claim, rows)) == 1


def test_one_seed_compares_no_budgets():
  """Which of several rivals is the best cannot be chosen by other seeds; then a single rival counts no more."""
  import paper
  rows = [(learner, 4, 10, 0, seed, cer, 1.0) for learner, cer in (("sm", 1.0), ("ff", 2.0)) for seed in SEEDS]
  ((*effects,),) = ([*cell.effects.values()] for cell in judged(paper.fixed_is_better("cumulative_fwd_macs"), rows))
  assert effects == [math.log(2)] * 3
  one = [row for row in rows if row[4] == 0]
  assert [cell.effects for cell in judged(paper.fixed_is_better("cumulative_fwd_macs"), one)] == [{}]


def test_the_cost_of_replay_is_that_of_fixed_learners():
  import paper
  costs = lambda low, high, *learners: judged(paper.replay_costs(low, high), [
      (learner, 4, wait, replay, seed, 1.0, 1 + replay * (500 / wait - 1) / 2 * (3 if learner == "gmoe" else 1))
      for learner in learners for wait in (10, 50) for replay in (0, 1) for seed in SEEDS])
  assert costs(5, 26, "sm", "gmoe") == ("agrees", "25.5 times at w = 10, 5.5 times at w = 50", 3, None)
  assert costs(5, 10, "sm").verdict == "in part"
  assert costs(6, 10, "sm").verdict == "disagrees"
  assert costs(5, 10, "gmoe") is None


@pytest.mark.parametrize(("best", "seeds", "verdict", "number"), [
    # From compute 2, the cheapest run of `ens`, to 4, the dearest one of `sm`; {seed: CER of ens at 2}.
    ({0: 1.0, 1: 1.01, 2: 1.0}, 3, "agrees", "lowest: `ens` at 2, `ens` at 2.8, `sm` at 4"),
    ({0: 9.0, 1: 9.1, 2: 9.0}, 3, "disagrees", "lowest: `sm` at 2, `sm` at 2.8, `sm` at 4"),
    ({0: 5.0, 1: 7.5, 2: 6.1}, 3, "", "lowest: `sm` at 2, `sm` at 2.8, `sm` at 4"),
    ({0: 1.0, 1: 1.01}, 2, "", "lowest: `ens` at 2, `ens` at 2.8, `sm` at 4"),
])
def test_who_has_the_best_trade_off(best, seeds, verdict, number):
  import paper
  rows = [row for seed in range(seeds) for row in (
      ("sm", 4, 10, 0, seed, 8.0, 1.0), ("sm", 8, 10, 0, seed, 6.0, 1.5), ("sm", 64, 10, 0, seed, 0.5, 4.0),
      ("ens", 4, 10, 0, seed, best[seed], 2.0), ("ens", 64, 10, 0, seed, 0.1, 100.0))]
  found = judged(paper.no_learner_is_always_best, rows)
  assert (found.number, found.seeds) == (number, seeds)
  assert (found.verdict if found.p < 0.05 else "") == verdict
  apart = [row if row[0] == "sm" else (*row[:-1], 100.0) for row in rows if row[5] != 0.1]
  assert judged(paper.no_learner_is_always_best, apart) is None  # no budget at which both have runs
  near = [(*row[:-1], 3.9) if row[5] == 0.5 else row for row in rows]
  assert judged(paper.no_learner_is_always_best, near) is None  # both have runs from 2 to 3.9


def test_equal_learners_rarely_have_different_trade_offs():
  """Two learners whose CER is a function of the compute alone, with noise, and a third one that is worse everywhere."""
  import paper
  rng, wrong = np.random.default_rng(0), 0
  for _ in range(100):
    rows = [(learner, width, 10, 0, seed, worse * width**-2.0 * math.exp(0.05 * rng.normal()), float(width))
            for learner, worse in (("sm", 1.0), ("ens", 1.0), ("umix", 3.0)) for width in (4, 8, 16, 32)
            for seed in SEEDS]
    wrong += judged(paper.no_learner_is_always_best, rows).p < 0.05
  assert wrong <= 12  # 5 % of 100 are 5; 12 are three deviations above that


@pytest.mark.parametrize(("field", "values", "descending", "expected"), [
    ("learner.grow_every", [2, 5, 25], True, {"25 and 5": 3, "5 and 2": 2}),
    ("learner.growth_rate", [0.5, 0.25, 0.1], False, {"0.1 and 0.25": 3, "0.25 and 0.5": 2}),
    ("learner.gating", ["soft", "hard", None], False, {"hard and soft": 2}),
    ("learner.init_from_scratch", [False, True, None], True, {"1 and 0": 2}),
])
def test_kinds_in_an_order(field, values, descending, expected):
  """CERs of 1, 2 and 6 at the values of a field; without a value a kind is not compared, nor one that trains twice."""
  import paper
  rows = [("gmoe", 4, wait, 1, seed, cer, 1.0) for wait in (10, 250) for seed in SEEDS for cer in (1.0, 2.0, 6.0)]
  claim = paper.ordered(field, ("gmoe",), descending)
  cells = judged(with_field(field, values * 6)(claim), rows)
  assert {cell.name.rsplit(", ", 1)[-1]: round(math.exp(cell.effects[1])) for cell in cells} == expected
  assert judged(with_field(field, values * 6)(paper.ordered(field, ("ff",), descending)), rows) == []
  no_replay = [(*row[:3], 0, *row[4:]) for row in rows]
  for with_replay in (False, True):
    chosen = paper.ordered(field, ("gmoe",), descending, with_replay)
    assert len(judged(with_field(field, values * 6)(chosen), no_replay)) == (0 if with_replay else len(expected))


def test_rivals_at_the_same_waiting_time_and_at_any():
  import paper
  rows = [(learner, 4, wait, replay, seed, cer, 1.0) for learner, wait, replay, cer in (
      ("sm", 10, 0, 4.0), ("sm", 50, 0, 1.0), ("sm", 10, 1, 8.0), ("gens", 10, 0, 2.0)) for seed in SEEDS]
  effect = lambda claim: [round(math.exp(cell.effects[0]), 9) for cell in judged(claim, rows)]
  compute = "cumulative_fwd_macs"
  assert effect(paper.replay_is_no_better_trade_off(same_wait=True)) == [4.0]  # against gens at w = 10
  assert effect(paper.replay_is_no_better_trade_off(same_wait=False)) == [8.0]
  no_replay = [row for row in rows if not row[3]]
  assert [round(math.exp(judged(paper.fixed_is_better(compute, same_wait=same), no_replay)[0].effects[0]), 9)
          for same in (True, False)] == [0.5, 2.0]


def test_the_best_with_replay_is_compared_with_the_best_of_its_width():
  import paper
  rows = [("sm", width, 10, replay, seed, cer, 1.0) for width, replay, cer in (
      (4, 0, 8.0), (4, 1, 4.0), (32, 0, 2.0), (32, 1, 1.0)) for seed in SEEDS]
  assert [(cell.name, *cell.effects.values()) for cell in judged(paper.replay_is_best, rows)] == [
      ("width 4", *[math.log(2)] * 3), ("width 32", *[math.log(2)] * 3)]


def test_the_largest_network_is_the_one_that_leads_early(monkeypatch):
  import paper
  import study_runs
  rows = [("sm", width, wait, 0, seed, 1.0, 1.0) for width in (4, 8, 32, 64) for wait in (10, 100) for seed in SEEDS]
  seen = []
  def at(runs, t):
    seen.append(t)
    return runs._replace(table=runs.table.assign(cer=1.0 / runs.table["model.width"]))
  monkeypatch.setattr(study_runs.Runs, "at", at)
  cells = judged(paper.large_networks_lead_early, rows)
  assert seen == [50]  # once: w = 100 has no training yet
  assert [*cells[0].effects.values()] == [math.log(64)] * 3

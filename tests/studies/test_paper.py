"""Which runs are compared for a claim of the paper (benchmarks/paper.py), on made runs."""
import math

import numpy as np
import pytest
from made_studies import SEEDS, _path, judged, keep, text_runs, with_field  # noqa: F401

pytestmark = pytest.mark.slow


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


def test_with_replay_the_shortest_waiting_time_is_compared_with_the_best_longer_one():
  """`ens` has no runs at the shortest one."""
  import paper
  rows = [(learner, 4, wait, replay, seed, cer / (1 + replay), 1.0) for learner, waits in (
      ("sm", {10: 1.0, 50: 4.0, 250: 2.0}), ("ens", {50: 1.0, 250: 2.0})) for wait, cer in waits.items()
      for replay in (0, 1) for seed in SEEDS]
  (cell,) = judged(paper.replay_ends_waiting, rows)
  assert [*cell.effects.values()] == pytest.approx([math.log(2)] * 3)


def test_one_seed_compares_no_budgets():
  """Which of several rivals is the best cannot be chosen by another seed; then a single rival counts no more."""
  import paper
  rows = [(learner, 4, 10, 0, seed, cer, 1.0) for learner, cer in (("sm", 1.0), ("ff", 2.0)) for seed in SEEDS]
  ((*effects,),) = ([*cell.effects.values()] for cell in judged(paper.fixed_is_better("cumulative_fwd_macs"), rows))
  assert effects == [math.log(2)] * 3
  one = [row for row in rows if row[4] == 0]
  assert [cell.effects for cell in judged(paper.fixed_is_better("cumulative_fwd_macs"), one)] == [{}]


def test_whoever_chooses_does_not_win():
  """Two families of learners with the same choice of widths; if they change their names, the effects change sign.

  The scores are noise, so that the best of one family is better than most of the other one, and the other way round.
  """
  import paper
  rng = np.random.default_rng(0)
  rows = [(learner, width, 10, 0, seed, math.exp(rng.normal()), width * (1.01 if learner == "ens" else 1.0))
          for learner in ("sm", "ens", "gens", "gmoe") for width in (4, 8, 16, 32) for seed in SEEDS]
  other = {"sm": "gens", "gens": "sm", "ens": "gmoe", "gmoe": "ens"}
  held = with_field("cumulative_params", [row[1] * (0.9 if row[0] == "gmoe" else 1.0) for row in rows])
  for budget in (["cumulative_fwd_macs"], ["cumulative_fwd_macs", "cumulative_params"]):
    one, two = (sorted(tuple(cell.effects.values()) for cell in judged(held(paper.fixed_is_better(*budget)), its))
                for its in (rows, [(other[row[0]], *row[1:]) for row in rows]))
    assert len(one) >= 4
    assert np.allclose(one, [[-effect for effect in effects] for effects in two[::-1]])


@pytest.mark.parametrize(("cost", "expected"), [
    (0.79, []), (0.81, [2.0]), (1.0, [2.0]), (1.04, [2.0]), (1.06, [2.0]), (1.24, [2.0]), (1.26, [])])
def test_the_costs_of_both_sides_are_near(cost, expected):
  """Up to 1.05 times the budget, and from 0.8 times on; the budget is the cost of either."""
  import paper
  rows = [(learner, 4, 10, 0, seed, cer, compute) for learner, cer, compute in (
      ("sm", 1.0, 1.0), ("gmoe", 2.0, cost)) for seed in SEEDS]
  cells = judged(paper.fixed_is_better("cumulative_fwd_macs"), rows)
  assert [round(math.exp(cell.effects[0]), 9) for cell in cells] == expected


@pytest.mark.parametrize(("held", "num"), [(1.0, 1), (0.7, 0), (1.3, 0)])
def test_both_costs_are_near(held, num):
  import paper
  rows = [(learner, 4, 10, 0, seed, cer, 1.0) for learner, cer in (("sm", 1.0), ("gmoe", 2.0)) for seed in SEEDS]
  claim = with_field("cumulative_params", [1.0] * 3 + [held] * 3)(paper.fixed_is_better("cumulative_fwd_macs",
                                                                                        "cumulative_params"))
  assert len(judged(claim, rows)) == num


def test_budgets_at_which_the_same_runs_are_the_best_count_once():
  """Of three budgets, the first two have the same best runs; the third one has a better fixed network."""
  import paper
  rows = [(learner, width, 10, 0, seed, cer, compute) for learner, width, cer, compute in (
      ("sm", 4, 2.0, 1.0), ("gmoe", 4, 4.0, 1.01), ("gens", 8, 8.0, 1.1), ("sm", 8, 1.0, 1.12)) for seed in SEEDS]
  cells = judged(paper.fixed_is_better("cumulative_fwd_macs"), rows)
  assert [(round(math.exp(cell.effects[0]), 9), cell.groups) for cell in cells] == [
      (2.0, {"stream.waiting_time": "w = 10"}), (4.0, {"stream.waiting_time": "w = 10"})]
  assert cells[1].name == "waiting_time 10, 1.1 multiply-adds: gmoe, against sm, width 8"


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
  reason = "the costs of the learners overlap by less than a factor of two"
  assert judged(paper.no_learner_is_always_best, apart) == reason  # no budget at which both have runs
  near = [(*row[:-1], 3.9) if row[5] == 0.5 else row for row in rows]
  assert judged(paper.no_learner_is_always_best, near) == reason  # both have runs from 2 to 3.9
  if verdict:  # the lower one of both tests, by hand
    import evidence
    p = lambda *ratios: evidence.estimated(np.log([ratios]))[0].p
    at_low = p(*(6.0 / best[seed] for seed in range(3)))
    at_high = p(*(best[seed] / 0.5 for seed in range(3)))
    # Each learner is worse at some of three budgets, or `sm` is the better one of both learners at each of them.
    by_hand = max(3 * at_low, 3 * at_high) if verdict == "agrees" else 2 * max(at_low, at_high)
    assert found.p == pytest.approx(by_hand)


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


def test_which_waiting_times_count():
  """CERs of 8, 1, 2 and 4 at w = 1, 10, 50 and 500: the better one of the ends has four times the best between them."""
  import paper
  rows = [("sm", width, wait, 0, seed, cer, 1.0) for width in (4, 64) for seed in SEEDS
          for wait, cer in ((1, 8.0), (10, 1.0), (50, 2.0), (500, 4.0))]
  factor = lambda claim: [round(math.exp(cell.effects[0]), 9) for cell in judged(claim, rows)]
  assert factor(paper.waiting_helps("small")) == factor(paper.waiting_helps("large")) == [4.0]
  assert factor(paper.waiting_helps("difference")) == [1.0]
  # The final error, here the CER, at w = 1 against each of the others.
  assert factor(paper.short_waits_end_worse(difference=False)) == [8.0, 4.0, 2.0] * 2
  points = judged(paper.short_waits_end_worse(difference=True), rows)
  assert [cell.effects[0] for cell in points] == [0.0]
  higher = [(*row[:5], row[5] + (0.3 if row[1:3] == (4, 1) else 0.0), row[6]) for row in rows]
  assert [round(cell.effects[0], 9) for cell in judged(paper.short_waits_end_worse(difference=True), higher)] == [0.3]


def test_replay_that_trains_twice_is_not_the_best():
  import paper
  rows = [("sm", 4, wait, replay, seed, cer, 1.0) for wait, replay, cer in (
      (10, 0, 2.0), (10, 1, 1.0), (250, 1, 0.1)) for seed in SEEDS]
  (cell,) = judged(paper.replay_is_best, rows)
  assert cell.effects[0] == pytest.approx(math.log(2))


def test_texts_that_train_twice_count(tmp_path):
  """Their average perplexity is over the trainings, not over the mega-batches."""
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.growing_helps(small=False, learners=("gmoe",))(claims.read(tmp_path / "text", {}))
  assert {cell.groups["stream.waiting_time"] for cell in cells} == {"w = 1", "w = 3"}  # at w = 4 it trains once


def test_the_last_size_from_the_beginning(tmp_path):
  """Against the largest `sm` of the same steps that does not wait either."""
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  runs = claims.read(tmp_path / "text", {})
  (cell,) = paper.final_size_is_better(runs)
  of = lambda learner, experts: runs.table[(runs.table["learner.name"] == learner) & (
      runs.table["model.num_experts"] == experts) & (runs.table["stream.waiting_time"] == 1)].set_index("seed")
  ratio = of("gmoe", 4)["average_perplexity"] / of("sm", 12)["average_perplexity"]
  assert cell.effects == pytest.approx(np.log(ratio).to_dict())


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


def cells_of(text):
  """What the claim with this text compares."""
  import claim_list
  return next(claim.cells for claim in claim_list.CLAIMS if claim.text == text)


def test_ensembles_trained_apart_or_as_one():
  rows = [(learner, width, 10, 0, seed, 2.0 if (learner == "ens") == (width < 16) else 1.0, 1.0)
          for learner in ("ens", "umix") for width in (4, 8, 32) for seed in SEEDS]
  for text, widths in (("UMix beats Ens for small networks", ["width 4", "width 8"]),
                       ("Ens beats UMix for large networks", ["width 32"])):
    cells = judged(cells_of(text), rows)
    assert [cell.groups["model.width"] for cell in cells] == widths
    assert {effect for cell in cells for effect in cell.effects.values()} == {math.log(2)}


def test_an_ensemble_within_the_budget_of_a_wider_network():
  kinds = (("ens", 4, 2.0, 5.0), ("sm", 4, 4.0, 1.0), ("sm", 16, 1.0, 4.0), ("sm", 64, 0.1, 64.0))
  rows = [(learner, width, 10, 0, seed, cer, comp) for learner, width, cer, comp in kinds for seed in SEEDS]
  (cell,) = judged(cells_of("At equal compute an ensemble beats a single network"), rows)
  assert [*cell.effects.values()] == [math.log(0.5)] * 3


@pytest.mark.parametrize(("text", "better"), [
    ("At equal compute a growing ensemble beats other growing learners", "gens"),
    ("At equal memory a growing ensemble loses to other growing learners", "gmoe")])
def test_growing_learners_of_the_same_cost(text, better):
  rows = [(learner, 4, 10, 0, seed, 1.0 if learner == better else 2.0, 1.0) for learner in ("gens", "gmoe", "sm")
          for seed in SEEDS]
  (cell,) = judged(with_field("cumulative_params", [1.0] * len(rows))(cells_of(text)), rows)
  assert [*cell.effects.values()] == [math.log(2)] * 3


def test_by_how_much_less_replay_helps_a_growing_ensemble():
  cer = {("sm", 0): 4.0, ("sm", 1): 1.0, ("gens", 0): 4.0, ("gens", 1): 2.0}
  rows = [(learner, width, 50, replay, seed, value, 1.0) for (learner, replay), value in cer.items()
          for width in (8, 32) for seed in SEEDS if width == 8 or learner == "sm"]
  (cell,) = judged(cells_of("Replay helps a growing ensemble least"), rows)
  assert [*cell.effects.values()] == [math.log(2)] * 3


def test_one_training_at_the_end():
  cer = {1: 4.0, 10: 2.0, 500: 1.0}
  rows = [(learner, 8, wait, 0, seed, value, 1.0) for learner in ("sm", "gens") for wait, value in cer.items()
          for seed in SEEDS]
  cells = cells_of("Training once, at the end, gives the lowest final error")
  assert [[*cell.effects.values()] for cell in judged(cells, rows)] == [[math.log(2)] * 3]
  assert not judged(cells, [row for row in rows if row[2] < 500])


def test_large_text_models_and_mixtures_of_an_intermediate_size(tmp_path):
  import claims
  runs, stream = text_runs()
  stream.loc[stream["t"] == 1, "perplexity"] *= 3
  keep(tmp_path, "text", runs, stream)
  runs = claims.read(tmp_path / "text", {})
  for text, effect in (
      ("A large language model after the first mega-batch beats a small one after the last", 0.16 - math.log(3)),
      ("A mixture with a constant, intermediate number of experts beats one that grows", 0.16 - 0.18)):
    (cell,) = cells_of(text)(runs)
    assert list(cell.effects.values()) == pytest.approx([effect] * 3, abs=0.01)
  table = runs.table.assign(cumulative_params=runs.table["learner.name"].map({"gens": 2.0, "gmoe": 1.0}).fillna(9.0))
  cells = cells_of("A growing mixture holds fewer parameters than a growing ensemble")(runs._replace(table=table))
  assert {effect for cell in cells for effect in cell.effects.values()} == {math.log(2)}
  (cell,) = cells_of("At equal compute a single language model beats an ensemble")(runs)
  assert max(cell.effects.values()) < 0  # an ensemble is better in this world

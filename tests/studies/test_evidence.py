"""The statistics behind the verdicts of benchmarks/: effects that are known, and worlds without any."""
import math

import numpy as np
import pytest
from made_studies import _path  # noqa: F401

pytestmark = pytest.mark.slow


def cell(*effects):
  import evidence
  return evidence.Cell("", dict(enumerate(effects)))


def weighed(*cells, exact=False):
  import evidence
  return evidence.weigh(cells, exact)


def test_a_mean_effect_and_its_interval():
  found = weighed(cell(0.1, 0.2, 0.3))
  # Mean 0.2, deviation 0.1, standard error 0.1 / sqrt(3), t = 3.4641 with two degrees of freedom. There
  # P(|T| > t) = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14), and the quantile of 0.975 is 4.3027.
  assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
  assert (found.mean, found.high - found.mean) == pytest.approx((0.2, 4.3027 * 0.1 / math.sqrt(3)), abs=1e-4)
  # Of two cells the means of each seed are tested: here they are the same as above.
  both = weighed(cell(0.0, 0.4, 0.2), cell(0.2, 0.0, 0.4))
  assert (both.p, both.mean, both.cells, both.positive) == pytest.approx((found.p, 0.2, 2, 2))


def made(rng, claims, freedom, noise=0.05):
  """[cells of a claim], without an effect: 1 to 16 cells, whose noise a claim shares in part, of varying strength."""
  found = []
  for _ in range(claims):
    strength = noise * math.sqrt(freedom / rng.chisquare(freedom))
    shared, size = rng.normal(size=3), int(rng.integers(1, 17))
    found.append([cell(*(strength * (0.5 * shared + rng.normal(size=3)))) for _ in range(size)])
  return found


def test_other_comparisons_count_as_further_seeds():
  import evidence
  # The variance of (0.1, 0.2, 0.3) is 0.01 with 2 degrees of freedom; beforehand it is 0.04 / 4, with 6 of them. Their
  # mean is 0.01, so that t = 0.2 / (0.1 / sqrt(3)) = 3.4641 with 8 degrees of freedom, where the quantile is 2.3060.
  spread = evidence.Spread(0.04, -1.0, 6.0)
  (alone,) = evidence.estimated(np.array([[0.1, 0.2, 0.3]]))
  found = evidence.moderated(alone, 4, spread)
  assert evidence.moderated(alone, 4, evidence.NOTHING) == alone
  assert (found.mean, found.margin) == pytest.approx((0.2, 2.3060 * 0.1 / math.sqrt(3)), abs=1e-5)
  assert found.p == pytest.approx(0.0085, abs=1e-4)
  weighty = evidence.weigh([cell(0.1, 0.2, 0.3)] * 4, spread=spread)
  assert (weighty.p, weighty.high - weighty.mean, weighty.freedom) == pytest.approx((found.p, found.margin, 8.0))
  # The fourth seed adds one degree of freedom: t = 0.2 / (0.1 / 2) = 4 with 9 of them, p = 0.0031.
  assert evidence.seeds_to_decide(weighty, 10 * weighty.p) == 4


def test_equal_values_have_an_error_but_no_test():
  import evidence
  (found,) = evidence.estimated(np.full((1, 3), 0.2))
  assert (found.mean, found.error, found.margin) == (pytest.approx(0.2), pytest.approx(0, abs=1e-12), math.inf)
  assert math.isnan(found.p)


def test_what_the_comparisons_of_a_study_say_about_their_variances():
  """Of many claims the parameters are found again; of few nothing is known."""
  import evidence
  rng = np.random.default_rng(0)
  alike = evidence.Spread.of([[cell(*row)] for row in 0.1 * rng.normal(size=(400, 3))])
  assert alike.scale == pytest.approx(0.01, rel=0.1)
  assert alike.freedom > 15
  varied = 0.1 * np.sqrt(4 / rng.chisquare(4, (2000, 1))) * rng.normal(size=(2000, 3))
  found = evidence.Spread.of([[cell(*row)] for row in varied])
  assert (found.scale, found.power) == (pytest.approx(0.01, rel=0.1), 0.0)
  assert 3 < found.freedom < 5.5
  # Independent cells of equal noise: the mean of n has an n-th of the variance.
  sizes = evidence.Spread.of([[cell(*row) for row in rng.normal(size=(n, 3))] for n in [1, 4, 16] * 60])
  assert sizes.power == pytest.approx(-1, abs=0.1)
  assert evidence.Spread.of([[cell(0.1, 0.2, 0.3)]]) == evidence.NOTHING
  assert evidence.Spread.of([[cell(0.1, 0.2)]] * 20) == evidence.NOTHING  # two seeds


def test_studies_whose_noise_varies_rarely_have_a_verdict():
  """Fifteen claims without an effect; 5 % of 300 studies are 15, and 28 are 3.4 deviations more."""
  import evidence
  rng, wrong = np.random.default_rng(0), 0
  for _ in range(300):
    claims = made(rng, 15, 2)
    spread = evidence.Spread.of(claims)
    found = [evidence.weigh(cells, spread=spread) for cells in claims]
    wrong += any(p < 0.05 for p in evidence.holm([each.p for each in found]))
  assert wrong <= 28


def test_effects_as_large_as_the_margin_are_rarely_none():
  """As above, but each claim has an effect of 3 %, for it or against it."""
  import evidence
  rng, wrong = np.random.default_rng(0), 0
  for _ in range(300):
    claims = [[cell(*(np.array(list(each.effects.values())) + sign * evidence.MARGIN)) for each in cells]
              for cells, sign in zip(made(rng, 15, 2, 0.01), rng.choice([-1, 1], 15))]
    spread = evidence.Spread.of(claims)
    found = [evidence.weigh(cells, spread=spread, margin=evidence.MARGIN) for cells in claims]
    adjusted = evidence.holm([each.p_equivalent for each in found])
    wrong += any(evidence.verdict(each._replace(p_equivalent=p), 1.0) == "no difference"
                 for each, p in zip(found, adjusted))
  assert wrong <= 28


def test_an_effect_that_is_too_small_to_matter():
  import evidence
  # Mean 0.001, standard error 0.01 / sqrt(3); t of the margin 0.0296 less the mean is 4.946. With two degrees of
  # freedom P(T > t) = 1/2 - t / (2 sqrt(2 + t^2)) = 0.0193.
  found = evidence.weigh([cell(-0.009, 0.001, 0.011)], margin=evidence.MARGIN)
  assert found.p_equivalent == pytest.approx(0.0193, abs=1e-4)
  assert evidence.verdict(found, found.p) == "no difference"
  assert evidence.verdict(found._replace(p_equivalent=0.051), found.p) == "cannot tell"
  assert evidence.verdict(found._replace(supporting=1), found.p) == "cannot tell"  # there is a difference somewhere
  assert math.isnan(weighed(cell(-0.009, 0.001, 0.011)).p_equivalent)
  assert math.isnan(evidence.weigh([cell(0.01, 0.01, 0.01)], margin=evidence.MARGIN).p_equivalent)  # no variation


def test_how_many_seeds_would_decide():
  import evidence
  found = weighed(cell(0.1, 0.2, 0.3))
  # With 4 seeds t = 0.2 / (0.1 / 2) = 4 and p = 0.028; with 5 seeds t = 4.47 and p = 0.011.
  assert evidence.seeds_to_decide(found, found.p) == 4
  assert evidence.seeds_to_decide(found, 3 * found.p) == 5  # three times 0.028 is not below 0.05
  assert evidence.seeds_to_decide(found, 0.04) is None
  assert evidence.seeds_to_decide(weighed(cell(-1.0, 0.0, 1.0001)), 1.0) is None  # more than anyone would run
  assert evidence.seeds_to_decide(weighed(cell(0.1, 0.2)), math.nan) is None


def test_a_cell_without_effect_does_not_support_a_claim():
  assert weighed(cell(0.0, 0.0, 0.0), cell(0.1, 0.2, 0.3)).positive == 1


def test_holm():
  import evidence
  # In order: 3 x 0.01, 2 x 0.03, 1 x 0.04, which must not be below the one before it.
  assert evidence.holm([0.04, 0.01, math.nan, 0.03])[:2] == pytest.approx([0.06, 0.03])
  assert evidence.holm([0.04, 0.01, math.nan, 0.03])[3] == pytest.approx(0.06)
  assert math.isnan(evidence.holm([0.04, math.nan])[1])
  assert evidence.holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(("cells", "exact", "expected"), [
    ([(0.5, 0.51, 0.52)], False, "agrees"),
    ([(-0.5, -0.51, -0.52)], False, "disagrees"),
    ([(0.5, -0.51, 0.02)], False, "cannot tell"),
    ([(0.5, 0.5)], False, "cannot tell"),  # two seeds
    ([(0.5, 0.51)], False, "cannot tell"),
    ([(0.5, 0.5, 0.5)], False, "cannot tell"),  # no variation to judge by
    ([(0.5, 0.51, 0.52), (-0.1, -0.1001, -0.1002)], False, "depends"),  # for it on average, and against it in one
    ([(0.5, 0.51, 0.52), (-0.1, 0.1, -0.1)], False, "agrees"),
    ([(0.5, 0.5, 0.5), (0.1, 0.1, 0.1)], True, "agrees"),
    ([(0.5, 0.5), (0.1, 0.1)], True, "cannot tell"),
    ([(-0.5, -0.51, -0.52), (0.1, 0.1001, 0.1002)], False, "depends"),  # against it on average, for it in one
    ([(0.5, 0.5, 0.5), (-0.1, -0.1, 0.1)], True, "in part"),
    ([(-0.5, -0.5, -0.5), (0.1, 0.1, 0.1)], True, "in part"),
    ([(-0.5, -0.5, -0.5), (0.0, 0.0, 0.1)], True, "disagrees"),
])
def test_verdicts(cells, exact, expected):
  import evidence
  found = weighed(*(cell(*effects) for effects in cells), exact=exact)
  assert evidence.verdict(found, found.p) == expected


def test_a_claim_that_depends_on_the_learner():
  """No single cell is significant after Holm, the four cells of a learner together are."""
  import evidence
  noises = {1: (0.3, -0.3, 0.0), 10: (-0.3, 0.3, 0.0), 2: (0.0, 0.3, -0.3), 5: (0.0, -0.3, 0.3)}  # their sum is 0
  cells = [evidence.Cell("", dict(enumerate(effect + np.array(noise) + (0.0, 0.01, -0.01))),
                         {"learner": learner, "wait": f"w = {wait}"})
           for learner, effect in (("a", 0.5), ("b", -0.2)) for wait, noise in noises.items()]
  found = evidence.weigh(cells)
  assert (found.supporting, found.opposing) == (0, 0)
  assert evidence.verdict(found, found.p) == "depends"
  assert [(group.value, group.sign, group.positive, group.cells) for group in found.conditions()] == [
      ("a", 1, 4, 4), ("b", -1, 0, 4)]
  # The waiting times tell the cells for the claim from the others in a study of counts; they ascend.
  counted = evidence.weigh([evidence.Cell("", {0: 1.0 if cell.groups["wait"] == "w = 10" else -1.0}, cell.groups)
                            for cell in cells], exact=True)
  assert [(group.value, group.positive) for group in counted.conditions()] == [
      ("w = 1", 0), ("w = 2", 0), ("w = 5", 0), ("w = 10", 2)]
  assert counted.range == (-1.0, -1.0, 1.0)


def test_cells_without_all_seeds_are_left_out():
  found = weighed(cell(1.0, 2.0, 4.0), cell(1.0, 2.0, 4.0), cell(9.0))
  assert (found.cells, found.left_out, found.seeds, found.mean) == (2, 1, 3, pytest.approx(7 / 3))
  assert weighed() is None
  assert weighed(cell()) is None


def test_studies_without_an_effect_rarely_have_a_verdict():
  import evidence
  rng, wrong, studies = np.random.default_rng(0), 0, 300
  for _ in range(studies):
    # Eight claims of four cells on three seeds; cells of a seed share a part of their noise, as those of runs do.
    shared = rng.normal(size=(8, 1, 3))
    effects = shared + rng.normal(size=(8, 4, 3))
    found = [evidence.weigh(cell(*each)._replace(groups={"learner": str(i // 2), "wait": str(i % 2)})
                            for i, each in enumerate(claim)) for claim in effects]
    adjusted = evidence.holm([each.p for each in found])
    wrong += any(evidence.verdict(each, p) != "cannot tell" for each, p in zip(found, adjusted))
  # 5 % of them are 15; more than 28 are 3.4 deviations of sqrt(300 x 0.05 x 0.95) above that.
  assert 0 < wrong <= 28


def test_a_large_effect_is_found():
  import evidence
  rng = np.random.default_rng(0)
  found = [weighed(*(cell(*rng.normal(0.5, 0.02, 3)) for _ in range(4))) for _ in range(8)]
  adjusted = evidence.holm([each.p for each in found])
  assert [evidence.verdict(each, p) for each, p in zip(found, adjusted)] == ["agrees"] * 8


def test_the_best_of_equal_kinds_is_no_better_than_they_are():
  import evidence
  rng = np.random.default_rng(0)
  tables = rng.normal(size=(400, 10, 3))  # tables of ten equal kinds and three seeds
  values = [evidence.best([dict(enumerate(kind)) for kind in table]) for table in tables]
  means = np.array([list(value.values()) for value in values]).mean(1)
  assert abs(means.mean()) < 4 * means.std() / math.sqrt(len(means))
  assert tables.mean(2).min(1).mean() < -0.5  # chosen by the same seeds
  assert evidence.best([{0: 2.0, 1: 3.0}]) == {0: 2.0, 1: 3.0}
  # Seed 0 takes the kind that is best on seed 1, that one the kind of seed 2, and that one the kind of seed 0.
  assert evidence.best([{0: 1.0, 1: 4.0, 2: 7.0}, {0: 2.0, 1: 3.0, 2: 8.0}]) == {0: 2.0, 1: 4.0, 2: 7.0}
  # A kind that lacks seed 2 is ignored, instead of taking this seed from the others.
  assert evidence.best([{0: 1.0, 1: 4.0, 2: 5.0}, {0: 0.1, 1: 0.1}], seeds=range(3)) == {0: 1.0, 1: 4.0, 2: 5.0}
  assert evidence.best([]) == evidence.best([{0: 1.0}, {0: 2.0}]) == {}


@pytest.mark.parametrize("gaps", [(0, 0, 0, 0), (0, 2, 2, 2)])
def test_the_largest_p_of_all_orders_is_valid(gaps):
  """Both sides have the same four kinds; if one is better than the others, in one order 8 % of the tests are wrong."""
  import evidence
  rng, num, wrong = np.random.default_rng(0), 1500, 0
  for sides in rng.normal(size=(num, 2, 4, 3)) + np.array(gaps)[:, None]:
    found = []
    for labels in evidence.orders(range(3)):
      one, two = (evidence.best([{labels[seed]: value for seed, value in enumerate(kind)} for kind in side])
                  for side in sides)
      found.append([one[label] - two[label] for label in range(3)])
    wrong += max(each.p for each in evidence.estimated(np.array(found))) < 0.05
  assert wrong / num < 0.04


def test_orders_of_seeds():
  import evidence
  following = lambda labels: {seed: next(other for other, label in labels.items() if label == (labels[seed] + 1) % 3)
                              for seed in labels}
  assert [following(labels) for labels in evidence.orders([2, 5, 9])] == [{2: 5, 5: 9, 9: 2}, {2: 9, 9: 5, 5: 2}]
  assert [len(evidence.orders(range(num))) for num in (1, 2, 3, 4, 5, 6, 7)] == [1, 1, 2, 6, 24, 2, 6]
  assert all(sorted(labels.values()) == [*range(7)] for labels in evidence.orders(range(7)))


def test_the_weakest_of_several_orders():
  import evidence
  one = evidence.Evidence(0.1, 0.0, 0.2, 0.01, 3, 4, 3, 2, 1, (0.0, 0.1, 0.2),
                          [evidence.Group("w", "1", 2, 2, 1), evidence.Group("w", "2", 2, 1, -1)])
  one = one._replace(p_equivalent=0.3)
  two = one._replace(p=0.04, mean=0.2, p_equivalent=0.2, supporting=1, opposing=2, groups=[
      evidence.Group("w", "1", 2, 2, 1), evidence.Group("w", "2", 2, 1, 0)])
  for found, expected in (([one, two], 1), ([two, one], 0)):
    place, said = evidence.weakest(found)
    assert (place, said.mean, said.p, said.supporting, said.opposing) == (expected, 0.2, 0.04, 1, 1)
    assert said.p_equivalent == 0.3
    assert [group.sign for group in said.groups] == [1, 0]
  assert evidence.weakest([two, one._replace(p=math.nan)])[0] == 1
  assert math.isnan(evidence.weakest([two, one._replace(p_equivalent=math.nan)])[1].p_equivalent)


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_best_of_equal_kinds_are_rarely_different(seeds):
  """Two sides of four equal kinds: 5 % of the tests at 5 % are significant, up to three standard deviations.

  If the kinds were chosen by all other seeds, 10 and 13 % of them would be.
  """
  import evidence
  rng, num, differences = np.random.default_rng(0), 3000, []
  for sides in rng.normal(size=(num, 2, 4, seeds)):
    one, two = (np.array([*evidence.best([dict(enumerate(kind)) for kind in side]).values()]) for side in sides)
    differences.append(one - two)
  wrong = sum(each.p < 0.05 for each in evidence.estimated(np.array(differences)))
  assert wrong / num < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)

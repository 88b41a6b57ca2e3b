"""Schedules of trainings: closed forms, fits of known laws, and the adaptive one against the best in hindsight."""
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import slow

from alma_jax.config.stream import Every, Geometric, Power
from alma_jax.data import schedule

SIZE, UNTRAINED = 120, 0.9  # examples of a mega-batch; error before the first training


def fixed(kind, b, *args, **fields):
  return made(kind, *args, **fields).ends(b)


def made(kind, w=1, s=1, p=4.0, g=1.15):
  return {"every": Every(waiting_time=w), "power": Power(num_trainings=s, exponent=p),
          "geometric": Geometric(factor=g)}[kind]


@pytest.mark.parametrize(("args", "ends"), [
    (("every", 10, 3), (3, 6, 9, 10)),
    (("every", 3, 7), (3,)),
    (("every", 1, 1), (1,)),
    (("power", 100, 1, 4, 2.0), (6, 25, 56, 100)),  # 6.25, 25, 56.25, 100
    (("power", 100, 1, 5, 4.0), (1, 3, 13, 41, 100)),  # 0.16, 2.56, 12.96, 40.96, 100
    (("power", 8, 1, 4, 0.1), (5, 6, 7, 8)),  # 6.96, 7.46, 7.77 and 8 would leave too few
    (("power", 5, 1, 5, 9.0), (1, 2, 3, 4, 5)),
    (("geometric", 20, 1, 1, 0.0, 2.0), (1, 2, 4, 8, 16)),
    (("geometric", 10, 1, 1, 0.0, 1.5), (1, 2, 3, 4, 6, 9)),  # 1.5, 3, 4.5 and 6: ties to the even number
    (("geometric", 4, 1, 1, 0.0, 1.0), (1, 2, 3, 4)),
], ids=str)
def test_fixed_schedules(args, ends):
  assert fixed(*args) == ends


@given(st.integers(1, 300), st.data())
@settings(deadline=None)
def test_power_has_as_many_trainings_as_asked_for(b, data):
  s, p = data.draw(st.integers(1, b)), data.draw(st.floats(0.01, 20))
  ends = fixed("power", b, s=s, p=p)
  assert len(ends) == s
  assert ends[-1] == b
  assert ends[0] >= 1
  assert (np.diff(ends) >= 1).all()


@given(st.integers(1, 300), st.integers(1, 300), st.floats(1, 5))
@settings(deadline=None)
def test_no_end_is_beyond_the_stream(b, w, g):
  every, geometric = fixed("every", b, w=w), fixed("geometric", b, g=g)
  assert len(every) == -(-b // w)
  assert every[-1] == b
  assert (np.diff((0, *every)) <= w).all()
  assert geometric == tuple(t for t in fixed("geometric", 300, g=g) if t <= b)  # it needs no B
  assert geometric[0] == 1


@pytest.mark.parametrize("num", [1, 5, 8, 13])
def test_a_geometric_schedule_may_train_at_the_end(num):
  schedule = Geometric(factor=2.0, train_at_end=True)
  ends = schedule.ends(num)
  assert ends == (*[t for t in (1, 2, 4, 8) if t < num], num)
  assert [t for t in range(1, num + 1) if schedule.decide(t, num, lambda t=t: t == num, None)[0]] == [*ends]
  live = [t for t in range(1, num + 1) if schedule.decide(t, 0, lambda t=t: t == num, None)[0]]  # nobody knows its end
  assert live == [*ends]


@given(st.sampled_from(["every", "power", "geometric"]), st.integers(1, 60), st.data())
@settings(deadline=None)
def test_the_next_training_is_one_of_the_ends(kind, b, data):
  """A live stream asks for it."""
  chosen = made(kind, data.draw(st.integers(1, b)), data.draw(st.integers(1, b)), g=1.5)
  ends = chosen.ends(b)
  for t in range(1, ends[-1] + 1):
    first = next(end for end in ends if end >= t)
    assert chosen.next(t, b) == first
  decided = [t for t in range(1, b + 1) if chosen.decide(t, b, lambda t=t: t == b, decided=None) == (True, {})]
  assert decided == [*ends]


@given(st.sampled_from([0.2, 0.5, 0.7, 1.2]), st.floats(0.01, 1000), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_fit_finds_a_law_without_noise(b, scale, floor):
  law = schedule.Law(floor * scale, scale, b)
  n = np.array([1, 2, 3, 5, 9, 14, 30, 70, 150, 400], float)
  found = schedule.fit(n, law.error(n), np.full(10, 1e9 / scale))
  np.testing.assert_allclose(found, law, rtol=1e-3, atol=1e-3 * scale)


MEASUREMENT = st.tuples(st.integers(1, 10**6), st.just(0.0) | st.floats(1e-6, 1e6), st.integers(1, 10**6))


@given(st.lists(MEASUREMENT, min_size=1, max_size=30))
@settings(deadline=None)
def test_a_law_is_finite_and_never_rises(measurements):
  n, error, weight = map(np.array, zip(*measurements))
  law = schedule.fit(n.astype(float), error, weight.astype(float))
  assert np.isfinite(law).all()
  assert min(law) >= 0
  assert (np.diff(law.error(np.arange(1, 50))) <= 0).all()


def test_fit_of_one_measurement():
  law = schedule.fit(np.array([4.0]), np.array([0.3]), np.array([120.0]))
  assert law == pytest.approx((0, 0.6, 0.5))  # 0.6 / sqrt(4)


def decide(ends, errors, price):
  return schedule.decide(ends, errors, [SIZE] * len(errors), price_per_mac=price / 1000, macs=1000)


def test_decide_gives_its_reasons():
  assert decide((), [None], 5.0) == (True, None, None, 5.0)
  # One error of 0.8: ê(n) = 0.8 / sqrt(n); at t = 3 the regret is 0.8 (2 - 1 / sqrt(2) - 1 / sqrt(3)) = 0.572.
  for price, train in ((0.57, True), (0.58, False)):
    decision = decide((1,), [None, 0.8, 0.8], price)
    assert decision.law == pytest.approx((0, 0.8, 0.5))
    assert decision.regret == pytest.approx(0.5725, abs=1e-4)
    assert decision.price == pytest.approx(price)
    assert decision.train == train


def run(error, price, seed=0, measure=None):
  """The mega-batches after which the adaptive schedule trains; error[t] is that of a model trained after t."""
  rng = np.random.default_rng(seed)
  measure = measure or (lambda e: rng.binomial(SIZE, e) / SIZE)
  ends, errors = (), []
  for _ in error[1:]:
    errors.append(measure(error[ends[-1]]) if ends else None)
    if decide(ends, errors, price).train:
      ends += (len(errors),)
  return ends


def total(ends, error, price, untrained=UNTRAINED):
  """J, the sum of the deployed models' errors and the prices of all trainings."""
  bounds = np.array((*ends, len(error)))
  return untrained * (bounds[0] - 1) + np.diff(bounds) @ error[bounds[:-1]] + price * len(ends)


def best(error, price, untrained=UNTRAINED):
  """(J, ends) of the best of all schedules, from the true errors.

  before[t] is the least J of the mega-batches before t where t is trained: over the training u before it, the least
  before[u] + price + (t - u) error[u].
  """
  end = len(error)
  before, previous = untrained * np.arange(-1.0, end), np.zeros(end + 1, int)
  for t in range(2, end + 1):
    u = np.arange(1, t)
    totals = before[1:t] + price + (t - u) * error[1:t]
    if totals.min() < before[t]:
      before[t], previous[t] = totals.min(), 1 + totals.argmin()
  ends, t = (), previous[end]
  while t:
    ends, t = (t, *ends), previous[t]
  return before[end], ends


def power_law(b, floor, megabatches):
  """error[t] for t = 0..B, with error[1] = UNTRAINED; error[0] is not used."""
  n = np.maximum(np.arange(megabatches + 1.0), 1)
  return floor + (UNTRAINED - floor) * n ** -b


def price_of(error, trainings):
  """The price at which about so many trainings are best: S = ∫ sqrt(|e'| / 2P) dt."""
  return np.sqrt(-np.diff(error[1:])).sum() ** 2 / (2 * trainings ** 2)


def test_the_best_schedule_is_that_of_a_search():
  error, price = power_law(0.6, 0.1, 7), 0.2
  every = [tuple(t for t in range(1, 8) if mask >> t - 1 & 1) for mask in range(1, 2**7)]
  found, ends = best(error, price)
  assert found == pytest.approx(min(total(ends, error, price) for ends in every))
  assert found == pytest.approx(total(ends, error, price))


LAWS = [(b, floor, 500, (8, 100)) for b in (0.2, 0.5, 0.9) for floor in (0.0, 0.02)] + [
    (0.5, 0.02, 100, (8, 32)), slow(0.2, 0.02, 2000, (8, 100)), slow(0.9, 0.0, 2000, (8, 100))]


@pytest.mark.parametrize(("b", "floor", "megabatches", "trainings"), LAWS)
def test_adaptive_is_close_to_the_best_in_hindsight(b, floor, megabatches, trainings):
  """J is at most 1.1 times the best on average, 1.15 times for any seed; what can be lost is 1.5 times at most."""
  error = power_law(b, floor, megabatches)
  for s in trainings:
    price = price_of(error, s)
    least, ends = best(error, price)
    assert abs(len(ends) - s) <= 0.3 * s + 2  # otherwise the prices do not span what they should
    totals = np.array([total(run(error, price, seed), error, price) for seed in range(2)])
    assert totals.min() >= least - 1e-9
    assert totals.mean() <= 1.1 * least
    assert totals.max() <= 1.15 * least
    unavoidable = error[1:].sum()  # a model trained at every mega-batch, for free
    assert totals.mean() - unavoidable <= 1.5 * (least - unavoidable)


def test_a_learner_that_learns_nothing_at_first_is_trained_again():
  """Without exploration the law stays flat, and J is 2.7 times the best."""
  error = np.minimum(UNTRAINED, 8 * np.maximum(np.arange(401.0), 1) ** -0.9)  # no better than untrained until t = 11
  price = price_of(error, 8)
  for seed in range(3):
    assert total(run(error, price, seed), error, price) <= 1.15 * best(error, price)[0]


@pytest.mark.parametrize("rise", [0.0, 0.001])
def test_errors_that_do_not_fall_cost_a_logarithmic_number_of_trainings(rise):
  error = 0.3 + rise * np.arange(301.0)
  for price in (0.1, 1.0, 10.0):
    ends = run(error, price, measure=float)
    assert len(ends) <= 3 + np.emath.logn(4, 300)
  assert run(error, 1e6, measure=float) == (1,)


def test_errors_of_zero_cost_one_training_and_a_price_of_zero_trains_always():
  assert run(np.zeros(200), 0.1, measure=float) == (1,)
  assert run(np.zeros(51), 0.0, measure=float) == tuple(range(1, 51))


def test_units_do_not_matter_where_measurements_are_exact():
  """Perplexities are above 1; price and metric in other units give the same schedule."""
  error = power_law(0.5, 0.0, 200)
  assert run(error, 0.2, measure=float) == run(1000 * error, 200.0, measure=float)


def test_perplexities():
  n = np.maximum(np.arange(401.0), 1)
  perplexity, untrained = 100 + 900 * n ** -0.4, 5000.0
  price = price_of(perplexity, 20)
  rng = np.random.default_rng(0)
  for _ in range(3):
    ends = run(perplexity, price, measure=lambda p: p * np.exp(0.3 * rng.standard_normal()))
    assert total(ends, perplexity, price, untrained) <= 1.05 * best(perplexity, price, untrained)[0]


def test_a_diverged_model_is_replaced():
  measured = [float("inf"), float("nan")]
  assert not decide((1,), [None, *measured], 1.0).train
  assert decide((1,), [None, *measured, 1.0], 0.1).law.scale > 0
  assert decide((1,), [None, *measured, np.inf], 1.0) == (True, None, None, 1.0)


def test_decide_looks_neither_ahead_nor_beyond():
  """The decisions of a stream are those of the same stream cut short."""
  error = power_law(0.5, 0.02, 200)
  whole = run(error, 0.3)
  assert run(error[:121], 0.3) == tuple(t for t in whole if t <= 120)


def test_decisions_are_fast():
  error, start = power_law(0.5, 0.02, 500), time.process_time()
  run(error, price_of(error, 100))
  assert time.process_time() - start < 0.5

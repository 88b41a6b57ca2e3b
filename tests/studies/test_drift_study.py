"""What the page about changing streams says of choosing among candidates."""
import numpy as np
import pytest
from made_studies import _path  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("stops", "error", "cost"), [(False, 6 * 0.1 + 2 * 1 + 4 * 0.5, 24), (True, 6 * 0.1 + 6, 17)])
def test_the_candidate_that_was_best_lately_predicts(stops, error, cost):
  """The first one is best until it fails; two errors later the other takes over, unless it stopped after five."""
  import drift_study
  errors = np.array([[0.1] * 6 + [1.0] * 6, [0.5] * 12])
  assert drift_study.chosen(errors, stops) == pytest.approx((error / 12, cost / 12))

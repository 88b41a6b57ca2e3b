"""What a run refuses of a learner's state, because it could not be restored."""
import numpy as np
import pytest

from alma_jax.errors import BadInput
from alma_jax.learners.contract import LearnerState, check_state

A, B, C = object(), object(), object()  # blocks of variables
ONE = LearnerState({"num_frozen": 1}, B, (A,))


@pytest.mark.parametrize("after", [
    ONE, LearnerState({"num_frozen": 2}, C, (A, B)), LearnerState({}, C, (A,)),
    LearnerState({"num_frozen": 1, "widths": [4, 4]}, B, (A,), host={"best": 2, "shares": np.zeros(3), "none": None})])
def test_states_that_can_be_restored(after):
  check_state(ONE, after, "mine")


@pytest.mark.parametrize(("after", "sentence"), [
    (LearnerState({"num_frozen": 0}, C, (A, B)), "2 frozen blocks and spec\\['num_frozen'\\]=0; Stacked.append"),
    (LearnerState({"num_frozen": 1}, B, (C,)), "replaced or removed a frozen block"),
    (LearnerState({"num_frozen": 0}, B, ()), "replaced or removed a frozen block"),
    (LearnerState({"num_frozen": 2}, C, (B, A)), "replaced or removed a frozen block"),
    (LearnerState({"num_frozen": 1}, B, (A,), host={"mean": [np.zeros(2)]}), "of type list into host\\['mean'\\]"),
    (LearnerState({"num_frozen": 1}, B, (A,), host={"empty": np.zeros(0)}), "of type ndarray into host\\['empty'\\]"),
    (LearnerState({"num_frozen": 1, "w": np.zeros(2)}, B, (A,)), "of type ndarray into spec\\['w'\\]")])
def test_states_that_cannot_be_restored(after, sentence):
  with pytest.raises(BadInput, match=f"the learner 'mine' .*{sentence}"):
    check_state(ONE, after, "mine")


@pytest.mark.parametrize("method", ["grow", "finish"])
def test_a_run_checks_every_state(tmp_path, arrays, make_config, monkeypatch, method):
  import alma_jax
  from alma_jax.learners import sm
  plain = getattr(sm.SM, method)

  def broken(self, state, data, *trained):
    result = plain(self, state, data, *trained)
    if method == "grow":
      return result[0]._replace(frozen=(result[0].live,)), result[1]
    return result._replace(state=result.state._replace(host={"best": np.float32}))

  monkeypatch.setattr(sm.SM, method, broken)
  with pytest.raises(BadInput, match="the learner 'sm'"):
    alma_jax.run(make_config("sm"), tmp_path, data=arrays)

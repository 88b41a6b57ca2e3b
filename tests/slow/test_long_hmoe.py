"""Growing hmoe: experts of several widths, and a capacity that is compiled for."""
import numpy as np
import pytest
from stages import Stages, contribution, setting_of, train_stage
from test_hmoe import mixture_of, nearest_of, rounds

pytestmark = pytest.mark.slow


def test_experts_of_several_widths():
  setting = mixture_of(learner__expert_widths=(4, 6), learner__split_every=1, learner__min_shard=5)
  _, (state, before, _, _), (state, growth, report, epochs) = rounds(setting)
  learner, data = setting.learner, Stages(setting)[0]
  assert state.spec["widths"] == [4, 6, 4]
  narrow, wide = state.live
  assert narrow.params["output"]["kernel"].shape == (2, 3, 4)
  assert wide.params["output"]["kernel"].shape == (1, 3, 6)
  assert {epoch.joint["width"] for epoch in epochs} == {6}
  index = nearest_of(setting, state, data.pool)
  answers = contribution(setting, state, 0, data.pool)["sum"]
  for expert in range(3):
    alone = learner._answers(state, expert, data.pool, np.arange(len(index)))
    np.testing.assert_allclose(answers[index == expert], alone[index == expert], atol=1e-6)
  labels = np.asarray(data.pool.y)[data.val]
  assert report.val == pytest.approx((answers[data.val].argmax(-1) != labels).mean())
  params = {width: 36 * width + width + width * width + width + width * 3 + 3 for width in (4, 6)}
  macs = {width: width * (36 + width + 3) for width in (4, 6)}
  cost, counts = learner.cost(state), state.host["counts"]
  assert cost.num_params == 2 * params[4] + params[6] + params[4] - (4 + 1) * 3
  mean = ((counts[0] + counts[2]) * macs[4] + counts[1] * macs[6]) // counts.sum()
  assert cost.predict_macs == mean + 36 * 4 + 4 * 4
  num = [len(np.concatenate([data.train[index[data.train] == i] for i in which])) for which in ([0, 2], [1])]
  assert growth.macs == before.macs + 2 * num[0] * macs[4]
  assert report.macs == 2 * num[1] * macs[6]
  after, _, _ = train_stage(setting, state, 1)  # a split copies an expert with its width
  assert sorted(after.spec["widths"][:3]) == [4, 4, 6]
  assert after.spec["widths"][3] == state.spec["widths"][int(np.argmax(state.host["losses"]))]
  assert "width 6" in learner.describe(after)


def test_a_growing_number_of_experts_compiles_for_its_capacity():
  setting = mixture_of(learner__split_every=1, learner__min_shard=3, stream__waiting_time=1, train__epochs=1,
                       model__num_experts=1)
  state, rooms = setting.learner.init(), []
  for stage in range(4):
    state, _, _ = train_stage(setting, state, stage)
    stacked_experts = setting.learner.template(state.spec).live.params["output"]["bias"].shape[0]
    rooms.append((len(state.host["counts"]), stacked_experts))
  assert rooms == [(1, 1), (2, 2), (3, 4), (4, 4)]
  single = setting_of("sm").learner.cost(setting_of("sm").learner.init()).num_params
  assert setting.learner.cost(state).num_params == 5 * single - 5 * 3

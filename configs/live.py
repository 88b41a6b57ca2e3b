"""A live stream: mega-batches of images that appear in a folder while the run goes on.

    python -m alma_jax.main --config=configs/live.py:anytime --config.dataset.name=live:DIR

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe, or
anytime (docs/anytime.md). Every entry of DIR/stream/ is a mega-batch: an .npz file of x
and y, a folder of images by class, or a Parquet file. DIR/test is the test set (optional),
DIR/classes.txt names the classes (optional), and the file DIR/end ends the stream
(docs/live.md). Every learner, anytime too, trains on each mega-batch when it arrives, and
there is no limit. anytime chooses the network, and leaves out old data that contradict the
new data (docs/changing-streams.md); anytime,uniform replays all data. The others train an
MLP.

For text, .txt and .jsonl files, LEARNER is one of sm, ens, gens, gmoe, anytime, with a size
as in configs/lm.py: configs/live.py:anytime,tiny or anytime,tiny,v1.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(arg: str = "anytime") -> ConfigDict:
  learner, _, size = arg.partition(",")
  recipe = {"anytime": "anytime,tracking", "anytime,uniform": "anytime"}.get(arg, arg)
  is_text = size and recipe not in config.RECIPES["images"]
  c = config.language(learner, size) if is_text else config.base(recipe)
  c.dataset.name = "live:stream"
  c.stream.num_megabatches = 0
  c.stream.schedule = "every"  # a geometric schedule, that of anytime, would train on fewer and fewer nights
  c.stream.waiting_time = 1
  if recipe in ("anytime", "anytime,tracking"):
    c.train.budget = 1e10 if recipe == "anytime" else 2e10  # a few seconds on two CPU cores; as much for each network
    c.train.most_passes = 0.0  # for schedules whose later stages have more new examples
  c.log.drift = 0.002
  c.log.predictor = True
  return c

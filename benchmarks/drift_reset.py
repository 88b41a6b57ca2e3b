"""The prequential errors of a learner that starts again at every alarm, on a stream that changes.

    python benchmarks/drift_reset.py --config=configs/drift.py:anytime,uniform,relabel --config.train.budget=1.6e9 \\
        --config.train.batch_size=32 --config.seed=10 --out=errors.csv

It is `live:anytime,uniform`, the single network that replays all data, with the budget and the batch size of the
config, and sees the same mega-batches. When the detector of `log.drift` reports that the prequential error has risen, a
new stream begins with the mega-batch that raised the alarm: a new network, without a memory. Prints a row, and appends
it to --out.
"""
import pathlib
import sys
import tempfile

import der
import drift_study
import numpy as np

import alma_jax
from alma_jax import commands, protocols
from alma_jax import config as configs
from alma_jax import main as command
from alma_jax.protocols import drift


def main() -> None:
  parser = commands.Parser("benchmarks/drift_reset.py", __doc__)
  parser.add_argument("--out", default="errors.csv", help="CSV file that gets further rows")
  options, flags = parser.parse_known_args()
  _, config = command._parse(flags)
  live = configs.parse(configs.overridden(configs.load_file("live", "anytime,uniform"), {
      "seed": str(config.seed), "train.budget": str(config.train.budget),
      "train.batch_size": str(config.train.batch_size),
      "stream.num_megabatches": str(config.stream.num_megabatches)}))  # for which the budget is planned
  entries = [(arrays["x"], arrays["y"]) for name, arrays in protocols.of(config).entries(config)
             if name.startswith("stream/")]
  errors, macs, alarms = list[float](), 0.0, list[int]()
  with tempfile.TemporaryDirectory() as folder:
    stream, detector = alma_jax.Stream(live, f"{folder}/1"), drift.Detector(live.log.drift)
    for t, (x, y) in enumerate(entries, 1):
      if t > 1:
        errors.append(float((stream.predict(x) != y).mean()))
        if detector.update({"prequential_error": errors[-1]}, len(y)):
          alarms.append(t)
          stream.close()
          stream, detector = alma_jax.Stream(live, f"{folder}/{t}"), drift.Detector(live.log.drift)
      macs += stream.update(x, y)["fwd_macs"]
    stream.close()
  row = drift_study.row(config, "reset", errors)
  print(f"{row['data']} {row['stream']}: {np.mean(errors):.4f}, last ten {np.mean(errors[-10:]):.4f}, {macs:.3g} "
        f"multiply-adds, alarms at {alarms}", flush=True)
  der.append(pathlib.Path(options.out), row)


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))

"""The paper's study of language models (Tables 1 and 2, Figure 5), on a small text.

    python benchmarks/part.py --text=books --kilobytes=30 --out=part
    python -m alma_jax.sweep --config=configs/sweeps/text.py
    python -m alma_jax.report runs/text --out report

4 mega-batches; the 300 steps of a stage take 614,000 tokens, 1.8 to 1.9 times as many as a mega-batch has. The learners
are those of Table 2: `sm` with 4, 8 and 12 experts, `ens` of 2 and 4 members with 4 experts each (4@2, 4@4), `gens`,
and `gmoe`, which grows from 4 to 12 experts. Waiting for 3 or 4 mega-batches they take the same number of steps a
stage, or (`steps_multiplier`) as many as a learner that does not wait takes on as much data. The latter are the runs on
independent data of Table 1, for k = 3 and 4.

The network is small for the text to suffice: width 64, 2,048 tokens, windows of 128. Its learning rate was chosen on
validation perplexities of `sm` with seed 1000 after the last mega-batch: 95.9 at 0.004, 89.4 at 0.008, 90.9 at 0.016.

The runs have 1.3e14 multiply-adds, with those of growing, and 159,300 training steps of single models, which take about
0.1 s of one core each: two CPU cores take about two and a half hours.

`sweeps/text:gates` has `gmoe` at w = 1 with flat routers and with the trees of gates of §4.2, each with copies that
preserve the function (`offset`) and with the paper's (`plain`).
"""
from alma_jax.errors import BadInput
from alma_jax.sweeps import Sweep, axis, product, zipped

SIZE = {"dataset.name": "text:part", "model.width": 64, "dataset.vocab_size": 2048, "dataset.sequence_length": 128,
        "train.batch_size": 16, "train.steps": 300, "train.learning_rate": (0.008,)}
LEARNERS = [
    *product(axis("learner", ["sm"]), axis("num_experts", [4, 8, 12])),
    *product(axis("learner", ["ens"]), axis("num_members", [2, 4])),
    *axis("learner", ["gens", "gmoe"]),
]
# Those that wait. A growing learner that waits for 4 mega-batches never grows.
STEPS = zipped(axis("waiting_time", [3, 3, 4, 4]), axis("steps_multiplier", [1, 3, 1, 4]))
WAITING = [*product(axis("learner", ["sm"]), axis("num_experts", [4, 8, 12]), STEPS),
           *product(axis("learner", ["ens"]), axis("num_members", [2, 4]), STEPS),
           *product(axis("learner", ["gens", "gmoe"]), STEPS[:2])]

GATES = [*product(axis("learner", ["gmoe"]), axis("copies", ["offset", "plain"]), axis("gates", ["flat", "tree"]))]


def get_sweep(part="all"):
  if part not in ("all", "gates"):
    raise BadInput(f"there is no part {part!r} of this sweep; the parts are all and gates.")
  points = GATES if part == "gates" else LEARNERS + WAITING
  return Sweep("configs/lm.py", product(axis("seed", [0, 1, 2]), points), fixed=SIZE)

"""The paper's study of language models (Tables 1 and 2, Figure 5), on a text so small that it is seen whole.

    python benchmarks/part.py --text=books --megabytes=6 --out=part
    python -m alma_jax.sweep --config=configs/sweeps/text.py --config.dataset.name=text:part
    python -m alma_jax.report runs/text --out report

4 mega-batches; 150 steps of 8 windows, 614,000 tokens, are about twice as many as a mega-batch has. The learners are
those of Table 2: `sm` with 4, 8 and 12 experts, `ens` of 2 and 4 members with 4 experts each (4@2, 4@4), `gens`, and
`gmoe`, which grows from 4 to 12 experts. Waiting for 3 or 4 mega-batches they take the same number of steps a stage, or
(`steps_multiplier`) as many as a learner that does not wait takes on as much data. The latter are the runs on
independent data of Table 1, for k = 3 and 4.

The runs have 4.9e14 multiply-adds. Two CPU cores take about 6 hours: 50,400 training steps of single models, each of
which took 0.45 s in the runs of docs/results.md.
"""
from alma_jax.sweeps import Sweep, axis, product, zipped

LEARNERS = [
    *product(axis("learner", ["sm"]), axis("num_experts", [4, 8, 12])),
    *product(axis("learner", ["ens"]), axis("num_members", [2, 4])),
    *axis("learner", ["gens", "gmoe"]),
]
# Those that wait. A growing learner that waits for 4 mega-batches never grows.
WAITING = [*product(axis("learner", ["sm"]), axis("num_experts", [4, 12])),
           *product(axis("learner", ["ens"]), axis("num_members", [2]))]
STEPS = zipped(axis("waiting_time", [3, 3, 4, 4]), axis("steps_multiplier", [1, 3, 1, 4]))


def get_sweep():
  points = product(axis("seed", [0, 1, 2]), LEARNERS + product(WAITING, STEPS) + product(
      axis("learner", ["gens", "gmoe"]), STEPS[:2]))
  return Sweep("configs/lm.py", points, fixed={"train.steps": 150, "train.warmup_steps": 15, "train.eval_every": 50})

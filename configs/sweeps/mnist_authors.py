"""The paper's MNIST study trained as in the authors' code, without Firefly: sm, gens and gmoe stop early.

    python -m alma_jax.sweep --config=configs/sweeps/mnist_authors.py

500 mega-batches, 100 epochs a stage, Adadelta; ens and umix do not stop early. configs/sweeps/mnist.py trains all
learners for as many epochs, as the paper says. gMoE splits an expert every 50
mega-batches at every waiting time, and ends with 10 experts a layer (with waiting
time 500 it never grows). The runs of one seed and width follow each other, so that
an interrupted sweep has complete comparisons.
"""
from alma_jax.sweeps import Sweep, axis, product, zipped


def get_sweep():
  fixed = product(axis("waiting_time", [10, 50, 500, 1]),
                  axis("learner", ["sm,authors", "gens,authors", "umix", "ens"]))
  growing = product(axis("learner", ["gmoe,authors"]),
                    zipped(axis("waiting_time", [10, 50, 500, 1]), axis("grow_every", [5, 1, 1, 50])))
  return Sweep("configs/mnist.py", product(
      axis("seed", [0, 1, 2]), axis("width", [4, 32, 8, 64]), fixed + growing))

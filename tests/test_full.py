"""Full-length checks, kept out of the suite: python -m pytest -m slow"""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MNIST = pathlib.Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser() / "mnist"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def kill(*flags):
  done = subprocess.run([sys.executable, "benchmarks/kill.py", "--kills=10", *flags], cwd=ROOT, capture_output=True,
                        text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "equal after 10 kills" in done.stdout


@pytest.mark.parametrize("learner", ["sm", "ens", "umix", "gens"])
def test_ten_kills_of_a_digits_run(learner):
  kill(f"--config=configs/digits.py:{learner}", "--config.train.epochs=400", "--config.train.patience=0",
       "--config.checkpoint.seconds=0.1")


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs a prepared MNIST in $TFDS_DATA_DIR")
@pytest.mark.parametrize("learner", ["ens", "gens"])
def test_ten_kills_of_an_mnist_run(learner):
  kill(f"--config=configs/mnist.py:{learner}", "--config.train.patience=0", "--config.checkpoint.seconds=1")


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs a prepared MNIST in $TFDS_DATA_DIR")
def test_parity_with_the_authors_code():
  done = subprocess.run([sys.executable, "benchmarks/parity.py"], cwd=ROOT, capture_output=True, text=True, check=True)
  rows = [line for line in done.stdout.splitlines() if line.startswith("width")]
  wide, narrow = rows[:2], [float(row.split("CER ")[1].split()[0]) for row in rows[2:]]
  assert all(abs(float(row.split(": ")[-1].split("%")[0])) <= 4 for row in wide), done.stdout
  assert narrow == sorted(narrow, reverse=True), done.stdout  # SM, Ens, UMix

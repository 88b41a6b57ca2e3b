#!/usr/bin/env bash
# Measures the image configs and the training steps of language models on a GPU: bash benchmarks/gpu.sh DATA_DIR OUT
# (folder of prepared TFDS data sets; folder for the run folders). About 10 minutes.
set -eu
data=$1 out=$2
mkdir -p "$out"
python -c 'import jax; print(jax.__version__, jax.devices())'
run="python -m alma_jax.main --config.dataset.data_dir=$data"
for width in 16 64; do
  for precision in float32 bfloat16; do
    $run --config=configs/cifar.py:ens --config.model.width=$width --config.precision=$precision \
      --config.train.epochs=5 --workdir="$out/ens-$width-$precision"
  done
done
$run --config=configs/mnist.py:ens --workdir="$out/mnist-ens"
python benchmarks/throughput.py --data_dir "$data"
# Checks that resumed runs end equal to the bit, with deterministic kernels.
python benchmarks/kill.py --config=configs/cifar.py:ens --config.dataset.data_dir="$data" \
  --config.deterministic=True --config.train.epochs=2 --config.stream.num_megabatches=20 --kills=3
# A language model's training step, and its share of an H100's 989 TFLOP/s (dense bfloat16).
python benchmarks/language.py --size base --precision bfloat16 --batch 64 --micro_batch 16 --compile --peak 989
python benchmarks/language.py --size large --precision bfloat16 --batch 64 --micro_batch 8 --compile --peak 989

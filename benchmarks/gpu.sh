#!/usr/bin/env bash
# Checks and measures this package on a GPU: bash benchmarks/gpu.sh DATA_DIR OUT [short]
# DATA_DIR: prepared TFDS data sets (mnist, cifar10). OUT: folder for the run folders. At most 10 minutes: every part has
# a limit, and the next one begins if a part fails or is cut. `short` runs every part in a small form, also on a CPU,
# with limits that are four times as long.
# PEAK: TFLOP/s of the GPU in bfloat16 (989 is an H100's, dense), PEAK32: in float32 as jax multiplies by default (TF32).
set -u
cd "$(dirname "$0")/.."
data=$1 out=$2 form=${3:-full} python=${PYTHON:-python}
export PYTHONPATH=$PWD XLA_PYTHON_CLIENT_PREALLOCATE=false  # several processes share the GPU
mkdir -p "$out"
failed=()

# part NAME SECONDS COMMAND...
part() {
  local name=$1 limit=$(($2 * slack)) began=$SECONDS code=0
  shift 2
  echo "== $name"
  timeout --kill-after=10 "$limit" "$@" || code=$?
  echo "== $name: exit code $code after $((SECONDS - began)) s of at most $limit s"
  [ $code = 0 ] || failed+=("$name")
}

slack=1
if [ "$form" = short ]; then
  slack=4
  tests=(tests/test_models.py -k vgg) cases=(mlp) turns=1
  ens=(--config=digits:ens --config.train.epochs=1) runs=("4 float32")
  kill=(--config=digits:ens --config.train.epochs=2 --kills=1)
  language=(--size tiny --steps 1 --repeats 1)
else
  tests=(tests/test_models.py tests/test_numerics.py tests/test_moe.py tests/test_switch.py) cases=(mlp vgg vgg64) turns=5
  ens=(--config=cifar:ens --config.train.epochs=2 --config.dataset.data_dir="$data")
  runs=("16 float32" "16 bfloat16" "64 bfloat16")
  kill=(--config=cifar:ens --config.dataset.data_dir="$data" --config.train.epochs=1 --config.stream.num_megabatches=20
        --config.deterministic=True --kills=2)
  language=(--size base --precision bfloat16 --batch 64 --micro_batch 16 --compile --peak "${PEAK:-989}")
fi

part versions 30 "$python" -c 'import sys, jax; print(sys.version, jax.__version__, jax.devices())'
platform=$("$python" -c 'import jax; print(jax.default_backend())')
[ "$platform" = cpu ] || platform=cuda
part "tests on $platform" 100 env ALMA_JAX_TEST_PLATFORM="$platform" JAX_DEFAULT_MATMUL_PRECISION=highest \
  "$python" -m pytest -q --maxfail=5 -p no:cacheprovider "${tests[@]}"
part "a training step against PyTorch, members, share of the peak" 110 "$python" benchmarks/throughput.py \
  --data_dir "$data" --cases "${cases[@]}" --repeats "$turns" --peak "${PEAK32:-495}"
# The 5 members of an ensemble, from the first compilation to the summary.
for run in "${runs[@]}"; do
  read -r width precision <<< "$run"
  part "ens of width $width in $precision" 60 "$python" -m alma_jax.main "${ens[@]}" --config.model.width="$width" \
    --config.precision="$precision" --workdir="$out/ens-$width-$precision" --overwrite
done
part "killed and resumed, with deterministic kernels" 110 "$python" benchmarks/kill.py "${kill[@]}"
part "a language model's training step against PyTorch" 70 "$python" benchmarks/language.py "${language[@]}"
echo "== ${#failed[@]} parts failed or were cut${failed[*]:+: ${failed[*]}}"
exit $((${#failed[@]} > 0))

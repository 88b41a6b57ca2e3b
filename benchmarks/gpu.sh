#!/usr/bin/env bash
# Checks and measures this package on a GPU: bash benchmarks/gpu.sh DATA_DIR OUT [short]
# DATA_DIR: prepared TFDS data sets (mnist, cifar10). OUT: folder for the run folders. At most 10 minutes: every part
# has a limit and 5 more seconds to end (the tests 20), and the next one begins if a part fails or is cut. `short` runs
# all in a small form, also on a CPU, with limits that are four times as long. In the full form the first part fails if
# Python is older than 3.12.
# PEAK: TFLOP/s of the GPU in bfloat16 (989 is an H100's, dense). PEAK32: in float32 as jax multiplies by default, TF32.
set -u
cd "$(dirname "$0")/.."
data=$1 out=$2 form=${3:-full} python=${PYTHON:-python}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} XLA_PYTHON_CLIENT_PREALLOCATE=false  # several processes share the GPU
mkdir -p "$out"
failed=()

# part NAME SECONDS COMMAND...
part() {
  local name=$1 limit=$(($2 * slack)) began=$SECONDS code=0
  shift 2
  echo "== $name"
  timeout --signal="${signal:-TERM}" --kill-after="${grace:-5}" "$limit" "$@" || code=$?
  echo "== $name: exit code $code after $((SECONDS - began)) s of at most $limit s"
  [ $code = 0 ] || failed+=("$name")
}

slack=1
if [ "$form" = short ]; then
  slack=4
  least=3.11 tests=(tests/test_models.py -k vgg) cases=(mlp) turns=1
  ens=(--config=digits:ens --config.train.epochs=1) runs=("4 float32")
  kill=(--config=digits:ens --config.train.epochs=20 --kills=1)
  language=(--size tiny --steps 1 --repeats 1)
else
  learners=(members_of_an_ensemble_are_separate_runs one_member_of_anything_is_a_single_model
            an_ensemble_predicts_as_its_members_together the_test_set_is_predicted_once_by_final_members)
  tests=(tests/test_models.py tests/test_numerics.py tests/test_moe.py tests/test_switch.py
         "${learners[@]/#/tests/test_learners.py::test_}")
  least=3.12 cases=(mlp vgg64 compact) turns=5
  ens=(--config=cifar:ens --config.train.epochs=2 --config.dataset.data_dir="$data")
  runs=("16 float32" "64 bfloat16")
  kill=(--config=digits:ens --config.train.epochs=20 --config.deterministic=True --kills=2)
  language=(--size base --precision bfloat16 --batch 16 --micro_batch 16 --repeats 3 --peak "${PEAK:-989}")
fi

rm -f "$out/platform"
part versions 20 "$python" -c '
import pathlib, sys, jax
print(sys.version, jax.__version__, jax.devices())
pathlib.Path(sys.argv[1]).write_text(jax.default_backend())
least = tuple(map(int, sys.argv[2].split(".")))
if sys.version_info < least:
  sys.exit(f"Python {sys.version.split()[0]} is older than {sys.argv[2]}; name another one by PYTHON=FILE.")
' "$out/platform" "$least"
platform=cuda
[ "$(cat "$out/platform" 2> /dev/null)" != cpu ] || platform=cpu
cores=$(nproc)
# Interrupted as by Ctrl-C, with time to list the tests that failed.
signal=INT grace=20 part "tests on $platform" 80 env ALMA_JAX_TEST_PLATFORM="$platform" \
  JAX_DEFAULT_MATMUL_PRECISION=highest "$python" -m pytest -vv -n $((cores < 16 ? cores : 16)) --tb=short \
  -p no:cacheprovider "${tests[@]}"
part "a training step against PyTorch, members, share of the peak" 170 "$python" benchmarks/throughput.py \
  --data_dir "$data" --cases "${cases[@]}" --repeats "$turns" --peak "${PEAK32:-495}"
# The 5 members of an ensemble, from the first compilation to the summary.
for run in "${runs[@]}"; do
  read -r width precision <<< "$run"
  part "ens of width $width in $precision" 55 "$python" -m alma_jax.main "${ens[@]}" --config.model.width="$width" \
    --config.precision="$precision" --workdir="$out/ens-$width-$precision" --overwrite
done
part "killed and resumed, with deterministic kernels" 75 "$python" tests/slow/kill.py "${kill[@]}"
part "a language model's training step against PyTorch" 85 "$python" benchmarks/language.py "${language[@]}"
echo "== ${#failed[@]} parts failed or were cut${failed[*]:+: ${failed[*]}}"
exit $((${#failed[@]} > 0))

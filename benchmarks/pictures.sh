#!/usr/bin/env bash
# Draws the pictures of the documentation anew, without a network.
#     benchmarks/pictures.sh RUNS      RUNS: a folder for the runs; finished ones are not run again
# The picture of a report needs Chromium.
# The others need more: docs/images/nights.png needs MNIST (its command is in docs/live.md), and board.png,
# gallery/demo.png and gallery/serve.png are screenshots of `alma board`, `alma demo` and `alma serve`.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=$1
python benchmarks/learners.py --workdir "$runs/learners"
python benchmarks/pictures.py "$runs/learners" docs/images
python benchmarks/drawings.py docs/images
rm -rf "$runs/tutorial"  # whose commands begin in an empty folder
python benchmarks/tutorial.py --workdir "$runs/tutorial" --out docs/images/tutorial
for learner in mntdp independent; do
  python -m alma_jax.main --config=configs/tasks.py:$learner,digits --workdir="$runs/tasks/$learner"
done
python -m alma_jax.report "$runs/tasks" --out "$runs/report-tasks"
cp "$runs/report-tasks/task-modules.png" docs/images/gallery/modules.png
browser=$(command -v chromium || command -v google-chrome || true)
if [ -n "$browser" ]; then
  "$browser" --headless --no-sandbox --hide-scrollbars --window-size=1200,1520 \
    --screenshot="$PWD/docs/images/gallery/report.png" "file://$(realpath "$runs")/tutorial/report/index.html"
fi
for study in mnist mnist_authors mnist_replay cifar text; do
  python benchmarks/study_figures.py "docs/results/$study"
done

#!/usr/bin/env bash
# Draws the pictures of the documentation anew, without a network.
#     benchmarks/pictures.sh RUNS      RUNS: a folder for the runs; finished ones are not run again
# Those of the board and of a report need Chromium; relabel.svg needs MNIST, and comes last. The others need more:
# docs/images/nights.png needs MNIST (its command is in docs/live.md), and gallery/serve.png is a screenshot of
# `alma serve` after a digit was drawn.
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
for study in mnist mnist_authors mnist_replay replay cifar text anytime; do
  python benchmarks/study_figures.py "docs/results/$study"
done
python benchmarks/drift_study.py docs/results/drift
python benchmarks/task_claims.py docs/results/tasks
chromium --headless --no-sandbox --hide-scrollbars --window-size=1200,1520 \
  --screenshot=docs/images/gallery/report.png "file://$(realpath "$runs")/tutorial/report/index.html"
python -m alma_jax.demo --out "$runs/demo" --no_open
chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,760 \
  --screenshot=docs/images/gallery/demo.png "file://$(realpath "$runs")/demo/index.html"
for learner in sm ens anytime; do
  for wait in 1 4; do
    python -m alma_jax.main --config=configs/digits.py:$learner --config.stream.schedule=every \
      --config.stream.waiting_time=$wait --workdir="$runs/board/$learner-wait$wait"
  done
done
rm -rf "$runs/board/gmoe"  # which the picture shows while it goes on
python -m alma_jax.main --config=configs/digits.py:gmoe --config.train.epochs=600 --workdir="$runs/board/gmoe" &
python -m alma_jax.board "$runs/board" --port=8999 &
until grep -qs '"t": 11' "$runs/board/gmoe/metrics.jsonl"; do sleep 1; done
chromium --headless --no-sandbox --hide-scrollbars --window-size=1200,1150 --virtual-time-budget=9000 \
  --screenshot=docs/images/board.png http://127.0.0.1:8999
kill %1 %2
for picture in board gallery/report gallery/demo; do
  python -c "from PIL import Image; path = 'docs/images/$picture.png'; Image.open(path).quantize(64).save(path, optimize=True)"
done
for learner in anytime uniform; do
  python -m alma_jax.main --config=configs/drift.py:anytime$([ $learner = anytime ] || echo ,$learner),relabel \
    --config.seed=10 --workdir="$runs/relabel/$learner"
done
python benchmarks/drawings.py docs/images --relabel "$runs/relabel"

#!/usr/bin/env bash
# Runs 08 alone and beside a busy loop, with other settings of its threads. At the root of the repository.
R=$(mktemp -d)
one() { env $2 .venv/bin/python 08_recompiled_pong.py --seed 0 --max-frames $3 --run-dir $R --checkpoint-every 0 2>&1 | tail -1 | sed "s/^/$1 $2: /"; }
for i in 1 2 3; do
  for v in X=1 OMP_NUM_THREADS=1 GOMP_SPINCOUNT=0 GOMP_SPINCOUNT=10000; do one alone $v 30000; done
  python3 -c "while True: pass" & B=$!
  one busy X=1 3000; one busy OMP_NUM_THREADS=1 30000; one busy GOMP_SPINCOUNT=0 9000; one busy GOMP_SPINCOUNT=10000 9000
  kill $B
done

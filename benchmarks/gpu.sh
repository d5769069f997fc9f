#!/usr/bin/env bash
# What to do with an hour on a GPU, the most useful first. Each step has a time limit, and what it
# prints is kept in a file; a step that fails does not stop the others.
#
#     benchmarks/gpu.sh [FOLDER]        (default: runs/gpu)
cd "$(dirname "$0")/.." || exit 1
trap 'exit 130' INT  # Ctrl-C ends all of it
out=${1:-runs/gpu}
mkdir -p "$out"

step() { # name, minutes, command
  echo "$(date +%T) $1, $2 minutes at most"
  timeout --foreground --signal=INT --kill-after=30 "$((60 * $2))" "${@:3}" >"$out/$1.txt" 2>&1
  case $? in
    0) echo "    done: $(tail -n 1 "$out/$1.txt")" ;;
    124 | 137) echo "    stopped at its time limit" ;;
    *) echo "    FAILED: $(tail -n 1 "$out/$1.txt")" ;;
  esac
}

step versions 2 python -m torch.utils.collect_env
short=(--cuda --run-dir "$out/runs")
for rung in 01_baseline 03_parallel 06_compiled_update; do
  step "$rung" 4 python "$rung.py" "${short[@]}" --replay-initial 1000 --max-frames 5000
done
step 08_recompiled_pong 8 python 08_recompiled_pong.py "${short[@]}" --max-frames 100000
step emulator 4 python -m benchmarks emulator --cuda --games 32 256 1024 --out "$out"
step emulator-cpu 4 python -m benchmarks emulator --games 32 256 1024 --out "$out/cpu"
step tests 15 python -m pytest -n 4 -rf tests/test_gpu.py tests/test_emulator_cuda.py
step fps 15 python -m benchmarks ladder --seeds 0 --run-dir "$out/fps" -- --cuda
step solve 20 python -m benchmarks ladder --rungs 08 07 --solve --seeds 0 --run-dir "$out/solve" -- --cuda
step table 2 python -m benchmarks table "$out/fps" "$out/solve" --out "$out"
echo "send $out with an issue"

#!/usr/bin/env bash
# Use fifteen minutes on a GPU, in two parts: nine minutes, a look at the results, three more minutes.
# The most important steps come first, because a part may run out of time.
#
#     OUT=folder bash benchmarks/gpu_minutes.sh first
#     OUT=folder bash benchmarks/gpu_minutes.sh second [FLAGS of 10]
#
# Each step has a limit in seconds, and none begins after the end of its part. The output goes to
# $OUT/PART.txt, events and tables to $OUT/PART.tgz. TINY=1 tries every step on a CPU with small sizes
# and ten times as much time. PEERS is a Python that imports ptan (default: this one), see requirements-peers.txt.
cd "$(dirname "$0")/.." || exit 1
part=${1:?first or second}
shift
out=$(realpath -m "${OUT:-runs/gpu-minutes}")
kept=$(mktemp -d)
mkdir -p "$out"
log=$out/$part.txt
peers=${PEERS:-$(command -v python)}
cores=$(nproc) # before OMP_NUM_THREADS is set, which nproc would return
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
if [ -n "$TINY" ]; then
  cuda=() frames=20 filling=60 games=4 slower=10
  small=(--envs 8 --rollout 4 --batch-size 16 --max-frames 600)
else
  cuda=(--cuda) frames=1500 filling=1000 games="1024 16384 4096" slower=1
  small=()
fi
case $part in first) seconds=$((540 * slower)) ;; second) seconds=$((180 * slower)) ;; *) exit 2 ;; esac

step() { # seconds, command
  local left=$((seconds - SECONDS)) limit=$(($1 * slower))
  shift
  ((left < limit)) && limit=$left
  ((limit > 5)) || { echo "=== no time for: $*" | tee -a "$log"; return; }
  echo "=== $SECONDS s: $* ($limit s at most)" | tee -a "$log"
  timeout --signal=INT --kill-after=5 "$limit" "$@" >>"$log" 2>&1
  echo "=== $SECONDS s: ended with $?: $(grep -v '^===' "$log" | tail -n 1)" | tee -a "$log"
  tar -czf "$out/$part.tgz" -C "$kept" --exclude=checkpoints .
}
rung() { # seconds, script, flags
  step "$1" python "$2.py" --run-dir "$kept/runs" "${cuda[@]}" "${@:3}"
}
fps() { # script, flags: plays $frames after filling
  rung 30 "$1" --replay-initial $filling --max-frames $((filling + frames)) "${@:2}"
}

techniques() { # seconds, parts
  step "$1" python -m benchmarks techniques --repeats 3 --milliseconds 100 "${cuda[@]}" \
    --out "$kept/techniques-$2" --only "${@:2}"
}

tests() { # seconds, arguments of pytest
  step "$1" python -m pytest -n "$(((cores + 1) / 2))" -rfs "${@:2}"
}

if [ "$part" = first ]; then
  # Compile the emulator for CPU and GPU during the first measurements, which need only one core.
  for device in cpu ${cuda:+cuda}; do
    taskset -c "0-$(((cores + 3) / 4 - 1))" python -c "
import time, pong_emulator
began = time.time()
pong_emulator.prepare('$device')
print(f'the emulator compiled for $device in {time.time() - began:.0f} s')" >>"$kept/compiled.txt" 2>&1 &
  done
  [ -n "$TINY" ] || nvidia-smi >>"$log" 2>&1
  # Do graphs keep their memory, and can others be captured after a failed capture?
  tests 30 tests/test_gpu.py -k "outlives or failed"
  techniques 30 calls
  wait
  cat "$kept/compiled.txt" >>"$log"
  tests 90 tests/test_emulator_cuda.py -k "1024 or waits"
  rung 75 10_thousands_of_games --seed 90 "${small[@]}"
  rung 75 10_thousands_of_games --seed 90 "${small[@]}" --envs "${games##* }"
  # shellcheck disable=SC2086  # several numbers
  step 45 python -m benchmarks emulator --games $games --rounds 1 --out "$kept/emulator" "${cuda[@]}"
  # The same without link-time optimisation, in a copy, because the cache only looks at the source.
  mkdir "$kept/copy" && cp -r benchmarks lib pong_emulator "$kept/copy"
  sed -i 's/cuda.jit(cache=True)/lambda f: cuda.jit(f, cache=True, lto=False)/' "$kept/copy/pong_emulator/cuda.py"
  # shellcheck disable=SC2086
  step 75 env -C "$kept/copy" python -m benchmarks emulator --games $games --rounds 1 \
    --out "$kept/emulator-without-lto" "${cuda[@]}"
  rm -r "$kept/copy"
  rung 75 08_recompiled_pong ${TINY:+--max-frames 600}
  tests 100 tests/test_gpu.py
  fps 03_parallel --play-device cpu
  for script in 00_slow_grads 01_baseline 02_n_envs 03_parallel 04_new_wrappers_n_env \
    04_new_wrappers_parallel 05_vector_env; do
    fps "$script"
  done
  rung 30 06_compiled_update --replay-initial $filling --max-frames $((filling + 8 * frames))
  rung 30 07_speedrun --max-frames $((8 * frames + 600))
else
  rung 60 10_thousands_of_games --seed 91 "${small[@]}" "$@"
  step 100 python -m benchmarks peers --python "$peers" --only ptan --rounds 1 --frames "$frames" \
    --out "$kept/peers" "${cuda[@]}"
  techniques 60 device precision copies profiler compilation
  rung 60 08_recompiled_pong --seed 91 ${TINY:+--max-frames 600}
fi
step 20 python -m benchmarks table "$kept/runs" --out "$kept"
rm -r "$kept"
ls -l "$out"

#!/usr/bin/env bash
# Checks Milepost on a machine with a GPU, in about five minutes, without installing anything into its Python:
#   scripts/gpu_check.sh [OUTPUT FOLDER]
# It uses the packages that PYTHON (default python3) has, and wheels from the folder .whl if there is one; no network is needed.
# MODEL names a model to measure; without it the embedded one if it is cached here, else a random one of 15 M parameters.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${PYTHON:-python3}") device=${DEVICE:-cuda} steps=${STEPS:-60}
python=$(realpath -s "$python")
out=$(realpath -m "${1:-runs/gpu-check}") work=$(mktemp -d)
mkdir -p "$out"
trap 'rm -rf "$work"' EXIT

export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
if compgen -G ".whl/*.whl" >/dev/null; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$work/site" .whl/*.whl
  PYTHONPATH=$PWD:$work/site
fi
milepost() { "$python" -m milepost.cli "$@"; }

milepost info | tee "$out/info.txt"
"$python" - "$device" <<'PYTHON'
import sys, torch
if sys.argv[1] == "cuda" and not torch.cuda.is_available():
    raise SystemExit("gpu_check: torch finds no CUDA device here; DEVICE=cpu checks the script itself")
PYTHON

model=${MODEL:-}
cache=${MILEPOST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/milepost}
if [ -z "$model" ] && [ -f "$cache/smollm2-135m/model.safetensors" ]; then model=smollm2-135m; fi
if [ -z "$model" ]; then
  milepost policy new "$work/random" --size large
  model=$work/random
fi

echo "== one step of 8 prompts × 8 completions, $model"
for precision in float32 bfloat16; do
  milepost bench step --model "$model" --precision "$precision" ${BENCH:-} --json >"$out/bench-$precision.json"
  milepost bench step --model "$model" --precision "$precision" ${BENCH:-}
done

echo "== a short run on $device: a small policy learns to name a number between two others"
cd "$work"
cat >rows.py <<'PYTHON'
import json, random
random.seed(0)
for _ in range(2000):
    low = random.randint(100, 900)
    high = low + random.randint(4, 40)
    print(json.dumps({"prompt": f"between {low} and {high}:", "answer": str(random.randint(low + 1, high - 1)),
                      "low": low, "high": high}))
PYTHON
cat >rewards.py <<'PYTHON'
def between(completions, low, high, **columns):
    return [float(text.isdigit() and a < int(text) < b) for text, a, b in zip(completions, low, high)]
PYTHON
"$python" rows.py >tasks.jsonl
milepost policy new tiny --texts tasks.jsonl
milepost init >/dev/null
sed -i 's/^path = "smollm2-135m"/path = "tiny"/; s/^name = "exact"/name = "rewards.py:between"/' recipe.toml
time milepost run recipe.toml name=gpu-check out="$out/runs" model.device="$device" sft.steps=150 grpo.steps="$steps" \
  rollout.prompts_per_step=16 rollout.max_new_tokens=6 | tee "$out/run.txt"
cp "$out"/runs/gpu-check*/report.html "$out/" 2>/dev/null || true

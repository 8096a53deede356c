#!/usr/bin/env bash
# Every figure of docs/speed.md that needs a GPU, in parts of some minutes each on one H200. PYTHON is .venv's, if there.
#   benchmarks/h200_all.sh tests|starts|train|float8|curves|presets-1|presets-2|presets-full
#   benchmarks/h200_all.sh decode|decode-peer|decode-packed|packed|masks
#   benchmarks/h200_all.sh race|ablation DATA OUT      DATA as benchmarks/speedrun.py wants it
#   benchmarks/h200_all.sh guess DATA OUT [KEY=VALUE...]   after race: trains a large model and a small one that guesses
# What is measured is added to benchmarks/results.jsonl; of race and ablation it lies in OUT.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=src:carry/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-$(ls .venv/bin/python 2> /dev/null || echo python3)}
usage() { sed -n '3,6s/^# *//p' benchmarks/h200_all.sh >&2; exit 2; }
[ $# -gt 0 ] || usage
part=$1
shift
case $part in race | ablation | guess) [ $# -ge 2 ] || usage ;; esac
case $part in
  tests)
    $python -m pytest -q -p no:cacheprovider -p no:benchmark -n 4 tests/training/test_gpu.py tests/decoding/test_gpu.py \
      tests/nn/test_fused_cross_entropy.py tests/nn/test_float8.py tests/nn/test_window_warmup.py tests/nn/test_kernels.py tests/nn/test_quantized_gemm.py
    $python -m pytest -q -p no:cacheprovider -p no:benchmark tests/laws/test_compiled.py -k gpu ;;
  starts)       $python benchmarks/startup_time.py "$@" ;;
  train)        $python benchmarks/h200_train.py "$@" ;;
  float8)       $python benchmarks/h200_train.py --float8 --cases gpt2 llama "$@" ;;
  curves)       $python benchmarks/h200_curves.py "$@" ;;
  decode)       $python benchmarks/h200_decode.py --batches 1 64 256 --peers plain --prefill --check "$@" ;;
  decode-peer)  $python benchmarks/h200_decode.py --batches 1 64 --peers hugging_face "$@" ;;
  masks)        $python benchmarks/attention_masks.py "$@" ;;
  packed)       $python benchmarks/quantized.py "$@" ;;
  decode-packed) $python benchmarks/h200_decode.py --batches 1 64 --peers --weights int8 int4 "$@" ;;
  presets-1)    $python benchmarks/h200_presets.py --share 1/2 "$@" ;;
  presets-2)    $python benchmarks/h200_presets.py --share 2/2 "$@" ;;
  presets-full) $python benchmarks/h200_presets.py --full "$@" ;;
  race)
    data=$1 out=$2
    shift 2
    $python benchmarks/speedrun.py "$data" "$out" --seeds 0 1 2 "$@" ;;
  ablation)
    data=$1 out=$2
    shift 2
    $python benchmarks/speedrun.py "$data" "$out" --seeds 0 1 2 --without all --seconds 7 "$@" ;;
  guess)
    data=$1 out=$2
    shift 2
    ids=$(find "$out" -maxdepth 1 -name 'ids-*' 2> /dev/null | head -n 1 || true)
    [ -n "$ids" ] || { echo "$out: holds no ids; run the part race with it first" >&2; exit 2; }
    for size in "large model.layers=24 model.width=1024 model.heads=8" "small model.layers=2"; do
      # shellcheck disable=SC2086
      $python -m heddle train speedrun "data=$ids" name=$size "$@"
    done
    $python -c 'import json, lzma, sys; print(*(json.loads(line)["text"] for line in lzma.open(sys.argv[1])), sep="\n\n")' \
      "$data/valid.jsonl.xz" > "$out/valid.txt"
    $python benchmarks/speculative.py runs/large --text "$out/valid.txt" --drafts lookup runs/small ;;
  *)
    echo "no part is called '$part'" >&2
    usage ;;
esac

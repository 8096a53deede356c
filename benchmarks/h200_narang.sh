#!/usr/bin/env bash
# `heddle compare narang` on a GPU machine that keeps nothing: every call begins with what the calls before it gave.
#   benchmarks/h200_narang.sh KEPT MINUTES [WORD...]
# KEPT has what earlier calls gave (runs.jsonl, pilot.json, logs.jsonl; empty or missing at first). The words go to
# `heddle compare`. What is to be kept lies in $OUT/narang afterwards: copy it over KEPT before the next call.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
kept=$1 minutes=$2
shift 2
export PYTHONPATH=$PWD/src:$PWD/carry/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-$(ls .venv/bin/python 2> /dev/null || echo python3)}
work=$(mktemp -d)/narang
out=${OUT:?}/narang
mkdir -p "$work" "$out"
cp "$kept"/*.json* "$work" 2> /dev/null
if command -v nvidia-cuda-mps-control > /dev/null; then  # kernels of several processes then run side by side
  export CUDA_MPS_PIPE_DIRECTORY=$work-mps CUDA_MPS_LOG_DIRECTORY=$work-mps
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
  nvidia-cuda-mps-control -d
fi
keep() {
  for name in runs.jsonl pilot.json logs.jsonl results.csv report.html command.txt; do
    [ -e "$work/$name" ] && cp "$work/$name" "$out/.$name" && mv "$out/.$name" "$out/$name"
  done
}
(while sleep 20; do keep; done) &
keeper=$!
$python -m heddle compare narang "$@" --minutes "$minutes" --whole -o "$work"
code=$?
kill "$keeper"
keep
[ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && echo quit | nvidia-cuda-mps-control
wc -l "$out"/*.jsonl
exit $code

#!/usr/bin/env bash
# Serving on one H200, in at most five minutes: invariance of four kinds of models, its cost, load, first tokens, gaps.
#   benchmarks/h200_serve.sh OUT [--tiny] [--parts PART...] [--streams N]
# OUT/serve.log has a JSON line for each part. With --tiny the same runs on a CPU in seconds, and measures nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '3,4s/^# *//p' "$0" >&2; exit 2; }
out=$1
shift
export PYTHONPATH=src:carry/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-$(ls .venv/bin/python 2> /dev/null || echo python3)}
mkdir -p "$out"
timeout "${SECONDS_AT_MOST:-300}" "$python" benchmarks/h200_serve.py "$@" 2>&1 | tee "$out/serve.log"

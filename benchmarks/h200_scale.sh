#!/usr/bin/env bash
# The scaling record of a Transformer and an LSTM on bytes, in short sessions on one H200 (or tiny, on a CPU).
#   benchmarks/h200_scale.sh PACKED OUT plan|pilot|grid|predict|test|report [MINUTES] [KEY=VALUE...]
# PACKED is what benchmarks/scaling_data.py wrote. Everything lies in OUT: give back its last state to go on.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=src:carry/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-$(ls .venv/bin/python 2> /dev/null || echo python3)}
[ $# -ge 3 ] || { sed -n '3,4s/^# *//p' "$0" >&2; exit 2; }
packed=$1 out=$2 part=$3
shift 3
minutes=9
case ${1:-} in [0-9]*) minutes=$1; shift ;; esac
tokens=${TOKENS:-${TMPDIR:-/tmp}/heddle_scaling_tokens}
[ -e "$tokens/prepared.json" ] || $python benchmarks/scaling_data.py "$packed" --prepare "$tokens"
grid=(first lstm "data=$tokens" tokenizer=byte rows.length=256 rows.boundaries=stream training.batch=64 validation_rows=4096
  model.dropout=0 budgets=3e13,1e14,3e14,1e15,3e15 larger.parameters=4e7 larger.tokens=1.49e8 larger.seeds=2 seeds=2)
for given in "$@"; do # in place of what the grid has under that key
  for at in "${!grid[@]}"; do [[ ${grid[$at]} != "${given%%=*}="* ]] || unset "grid[$at]"; done
  grid+=("$given")
done
how=(-o "$out" --processes "${PROCESSES:-12}" --minutes "$minutes")
case $part in
  plan)    $python -m heddle.cli.main scale "${grid[@]}" -o "$out" --plan ;;
  pilot)   $python -m heddle.cli.main scale "${grid[@]}" "${how[@]}" --pilot ;;
  grid)    $python -m heddle.cli.main scale "${grid[@]}" "${how[@]}" ;;
  predict) $python -m heddle.cli.main scale "${grid[@]}" -o "$out" --predict ;;
  test)    $python -m heddle.cli.main scale "${grid[@]}" -o "$out" --processes 4 --minutes "$minutes" --test ;;
  report)  $python -m heddle.cli.main scale "${grid[@]}" -o "$out" --report ;;
  *)       sed -n '3,4s/^# *//p' "$0" >&2; exit 2 ;;
esac

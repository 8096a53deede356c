#!/usr/bin/env bash
# The GPU records of text tasks, in phases, on a machine that keeps nothing but between calls that follow at once.
#   benchmarks/h200_tasks.sh PHASES SECONDS
# PHASES: names with `+` side by side, with `,` one after the other; NAME=N gives a phase N processes. SECONDS is the
# whole time of the call. What is cut off goes on with the next call of the same phase. The phases:
#   encoder    masked tokens ($ENCODER: more settings)           tasks     the encoder fine-tuned on nine tasks
#   seq2seq    span corruption ($SEQ2SEQ)                        samsum    fine-tuned from it; pointer: without it
#   steps      alone: the steps of distillation's control        students  and controls ($STUDENTS), a process a seed
#   distill    their fine-tuning and the teacher's               speed     alone: teacher and student on CPU and GPU
#   domain     Wikipedia, then reviews ($DOMAIN)                 edit      retrieve-and-edit on dialogues ($EDIT)
#   minilm     all tasks from MiniLM                             smollm    SAMSum and dialogue from SmolLM2
#   gpt        a language model of our own ($GPT)                replies   dialogue from it
#   prompts    few-shot and the rest with SmolLM2 ($PROMPTS)     own       the same with our own
#   blimp      BLiMP with the encoder
#   report     every table that there is
# Archives carry/*.tar, each laid out like OUT of text_tasks.py, are unpacked into $WORK; carry/kept.tgz, what an
# earlier call kept, is gone on from; $OUT/kept.tgz, renewed every 15 seconds, is what to carry next time.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 2 ] || { sed -n '2,20s/^# *//p' "$0" >&2; exit 2; }
plan=$1 deadline=$(($(date +%s) + $2))
known=" $(sed -n '/^phase() {/,/^}/s/^    \([a-z0-9]*\))$/\1/p' "$0" | tr '\n' ' ') "
for one in ${plan//[,+]/ }; do
  case $known in *" ${one%%=*} "*) ;; *) echo "no phase is called '${one%%=*}'" >&2; exit 2 ;; esac
done
work=${WORK:-/tmp/tt} carry=${CARRY:-carry} out=${OUT:?}
mkdir -p "$work/logs" "$work/runs" "$out"
cat "$work"/logs/*.log >> "$work/logs/earlier.txt" 2> /dev/null
rm -f "$work"/logs/*.log
site=$(dirname "$work")/heddle-site
for archive in "$carry"/site*.tar.xz; do
  name=$(basename "$archive")
  [ -e "$archive" ] && [ ! -e "$site/.$name" ] && mkdir -p "$site" &&
    tar xJf "$archive" -C "$site" --strip-components=1 && touch "$site/.$name"
done
[ -d "$site" ] && PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH=$PWD/src:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$work/inductor}
python=${PYTHON:-$(ls .venv/bin/python 2> /dev/null || echo python3)}
for archive in "$carry"/*.tar; do
  name=$(basename "$archive")
  [ -e "$archive" ] && [ ! -e "$work/.$name" ] && tar xf "$archive" -C "$work" && touch "$work/.$name"
done
if [ ! -e "$work/.kept" ] && [ -e "$carry/kept.tgz" ]; then
  $python benchmarks/h200_keep.py restore "$carry/kept.tgz" "$work"
fi
touch "$work/.kept"
if [ -e "$work/smollm2.gguf.part2" ]; then
  cat "$work"/smollm2.gguf.part* > "$work/smollm2.gguf" && rm "$work"/smollm2.gguf.part*
fi
if command -v nvidia-cuda-mps-control > /dev/null; then  # kernels of several processes then run side by side
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  mkdir -p "$work/mps"
  nvidia-cuda-mps-control -d 2> /dev/null
fi
keep() { $python benchmarks/h200_keep.py keep "$work" "$out/kept.tgz"; }
(while sleep 15; do keep; done) &
keeper=$!

left() { echo $((deadline - $(date +%s))); }
minutes() { local now; now=$(left); printf '%d.%02d\n' $((now / 60)) $((now % 60 * 100 / 60)); }
# run LOG COMMAND...: until the deadline, with a little for what ends by itself
run() {
  local log=$work/logs/$1.log
  shift
  [ "$(left)" -gt 5 ] || return 124
  timeout -k 5 "$(($(left) + 5))" "$@" >> "$log" 2>&1
}
# each LOG N COMMAND...: a process for each word of the standard input, N at a time
each() {
  local log=$1 many=$2
  shift 2
  export -f run left
  export work deadline
  xargs -P "$many" -I '{}' bash -c 'run "$@"' bash "$log-{}" "$@"
}
# shellcheck disable=SC2086
tune() { # tune LABEL N KEY=VALUE... --OPTION...
  local label=$1 many=$2
  shift 2
  run "$label" $python benchmarks/text_tasks.py finetune "$work" ${TUNE:-} "$@" --label "$label" --processes "$many" \
    --minutes "$(minutes)" --tidy
}
shots() { # shots NAME=MODEL N TASK...
  local model=$1 many=$2
  shift 2
  mkdir -p "$work/shots"
  printf '%s\n' "$@" | each "${model%%=*}" "$many" $python benchmarks/few_shot.py run "$work/data" "$work/shots" \
    --model "$model" --tasks '{}' --dtype ${DTYPE:-bfloat16} ${PROMPTS:-}
}
tasks=${TASKS:-trec sst5 sick ag ner sst2 imdb next squad}
rates=${RATES:-6e-5 1.2e-4}
seeds=${SEEDS:-0 1 2}

# shellcheck disable=SC2086
phase() {
  local name=${1%%=*} many=${1#*=}
  [ "$many" != "$1" ] || many=${PROCESSES:-12}
  case $name in
    encoder)
      run encoder $python benchmarks/text_tasks.py pretrain "$work" --minutes "$(minutes)" ${ENCODER:-} ;;
    tasks)
      tune scratch "$many" --tasks $tasks --rates $rates --seeds $seeds ;;
    seq2seq)
      run seq2seq $python benchmarks/text_tasks.py pretrain "$work" --what seq2seq --minutes "$(minutes)" \
        ${SEQ2SEQ:-training.steps=2500 training.schedule.warmup=250 every.validate=1000 every.sample=10000000} ;;
    samsum)
      tune scratch "$many" --tasks samsum --rates ${SUMMARY_RATES:-5e-4 1e-3} --seeds $seeds ;;
    pointer)
      tune pointer "$many" ${POINTER:-training.steps=3500} --tasks samsum --init pointer --seeds $seeds \
        --rates ${POINTER_RATES:-1e-3 2e-3} ;;
    steps)
      run steps $python benchmarks/distillation.py steps "$work" ${STUDENTS:-training.steps=1500} \
        hardware.compile=off ;;
    students)
      printf '%s\n' $seeds | each students "$many" $python benchmarks/distillation.py students "$work" \
        ${STUDENTS:-training.steps=1500} --seeds '{}' --minutes "$(minutes)" ;;
    distill)
      run distill $python benchmarks/distillation.py finetune "$work" ${TUNE:-} --rates $rates --seeds $seeds --tidy \
        --processes "$many" --minutes "$(minutes)" ${DISTILL:-} ;;
    speed)
      for device in ${DEVICES:-cpu cuda}; do
        run speed $python benchmarks/distillation.py speed "$work" --device $device ${SPEED:-}
      done ;;
    domain)
      if [ ! -e "$work/domain/held_out.jsonl.xz" ]; then
        mkdir -p "$work/domain/data/lm-wikipedia-sample" "$work/domain/data/cls-imdb"
        for file in "$work"/text/articles-train-*; do
          ln -sf "$file" "$work/domain/data/lm-wikipedia-sample/${file##*/articles-}"
        done
        cat "$work/imdb/train.jsonl.xz" "$work/imdb/valid.jsonl.xz" > "$work/domain/data/cls-imdb/train.jsonl.xz"
        run domain $python benchmarks/domain_pretraining.py tables "$work/domain/data" "$work/domain" || return
      fi
      printf '%s\n' $seeds | each domain "$many" $python benchmarks/domain_pretraining.py run "$work/domain" \
        ${DOMAIN:-training.steps=1000 training.batch=32} --seeds '{}' --minutes "$(minutes)" ;;
    edit)
      for seed in $seeds; do printf '%s\n' neighbours-$seed random-$seed none-$seed; done |
        each edit "$many" bash -c '"$0" benchmarks/retrieve_and_edit.py train "$1" $2 --arms ${3%-*} --seeds ${3#*-} \
          --minutes $4' $python "$work/edit" "${EDIT:-}" '{}' "$(minutes)" ;;
    minilm)
      tune minilm "$many" --tasks $tasks --init "$work/minilm" --rates ${MINILM_RATES:-5e-5 1e-4} --seeds $seeds ;;
    smollm)
      tune smollm "$many" --tasks samsum_chat dialogue_chat --init "$work/smollm2.gguf" --seeds $seeds \
        --rates ${SMOLLM_RATES:-3e-5 1e-4} ;;
    gpt)
      run gpt $python benchmarks/text_tasks.py pretrain "$work" --what gpt --minutes "$(minutes)" ${GPT:-} ;;
    replies)
      tune gpt "$many" --tasks dialogue_chat --init "$work/runs/gpt" --seeds $seeds \
        --rates ${SMOLLM_RATES:-3e-5 1e-4} ;;
    prompts)
      shots smollm2="$work/smollm2.gguf" "$many" sst2 trec ag webquestions blimp naturalstories ;;
    own)
      shots gpt="$work/runs/gpt" "$many" sst2 trec ag webquestions blimp naturalstories ;;
    blimp)
      shots encoder="$work/runs/encoder" "$many" blimp ;;
    report)
      run report $python benchmarks/text_tasks.py report "$work"
      [ ! -e "$work/distillation_runs.jsonl" ] ||
        run report $python benchmarks/distillation.py report "$work" --seeds $seeds
      [ ! -e "$work/domain/domain.jsonl" ] || run report $python benchmarks/domain_pretraining.py report "$work/domain"
      [ ! -e "$work/shots/results.jsonl" ] || run report $python benchmarks/few_shot.py table "$work/shots"
      [ ! -e "$work/edit/results.jsonl" ] || run report $python benchmarks/retrieve_and_edit.py report "$work/edit" ;;
  esac
}

for group in ${plan//,/ }; do
  for one in ${group//+/ }; do
    (
      began=$(date +%s)
      phase "$one"
      echo "phase $one: exit code $?, $(($(date +%s) - began)) s"
    ) &
    jobs_here="${jobs_here:-} $!"
  done
  # shellcheck disable=SC2086
  wait $jobs_here
  jobs_here=
done
kill "$keeper"
keep
[ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && echo quit | nvidia-cuda-mps-control
grep -hE "rror|cut off" "$work"/logs/*.log | cut -c1-200 | sort | uniq -c | tail -n 12
tail -n 40 "$work/logs/report.log" 2> /dev/null
wc -l "$work"/*.jsonl

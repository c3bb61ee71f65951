#!/bin/bash
# serve.sh MODEL_DIR PORT [sglang.launch_server arguments...]: real SGLang on the CPU, in the foreground.
# Later arguments override the ones below. Stop it with SIGTERM to its process id. Environment:
#   SGLANG_KIT_VENV         the environment setup.sh made (default .venv-sglang at the repository's root)
#   SGLANG_KIT_CORRUPTIONS  comma-separated names of corruptions/*.py to plant
set -euo pipefail
kit=$(dirname "$(readlink -f "$0")")
venv=${SGLANG_KIT_VENV:-$(readlink -f "$kit/../../..")/.venv-sglang}
model=${1:?model directory, as written by make_model.py} port=${2:?port}
shift 2

export PYTHONPATH=$kit/hooks:$kit/corruptions${PYTHONPATH:+:$PYTHONPATH}
unset PYTHONDONTWRITEBYTECODE # setup.sh leaves compiling to the first start; without this it would be every start
export SGLANG_USE_CPU_ENGINE=1 TRITON_INTERPRET=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# One thread: sums in one order, so that a healthy server agrees with itself to 1e-5.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# SGLang keeps the conv state in bfloat16 by default, which alone costs 9e-3 after a prefix hit.
export SGLANG_MAMBA_CONV_DTYPE=${SGLANG_MAMBA_CONV_DTYPE:-float32}

exec "$venv/bin/python" -m sglang.launch_server \
  --model-path "$model" --served-model-name "$(basename "$model")" --load-format auto --dtype float32 \
  --device cpu --attention-backend torch_native --skip-tokenizer-init --disable-overlap-schedule --sleep-on-idle \
  --max-total-tokens 8192 --chunked-prefill-size 256 --max-running-requests 16 --max-mamba-cache-size 64 \
  --host 127.0.0.1 --port "$port" --enable-metrics "$@"

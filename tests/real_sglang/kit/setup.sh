#!/bin/bash
# setup.sh [VENV]: the environment real SGLang runs in, by default .venv-sglang at the repository's root.
# Idempotent: a stamp holds what was installed, and a second call returns at once. Environment:
#   PYTHON    interpreter to build with (default python3)
#   PIP_ARGS  more arguments for pip, e.g. where a CPU-only torch can be found
set -euo pipefail
kit=$(dirname "$(readlink -f "$0")")
venv=${1:-$(readlink -f "$kit/../../..")/.venv-sglang}
python=${PYTHON:-python3}
stamp=$venv/.soak-stamp

wanted="$("$python" -V)
$(cat "$kit/requirements.txt")"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  echo "$venv is up to date"
  exit 0
fi
SECONDS=0
"$python" -m venv "$venv"
rm -f "$stamp"
# shellcheck disable=SC2086  # PIP_ARGS holds several arguments
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-compile ${PIP_ARGS:-} \
  -r "$kit/requirements.txt" || {
  echo "setup.sh: pip could not install $kit/requirements.txt into $venv. It needs a package index and a" >&2
  echo "CPU-only build of torch among pip's sources; name further sources in PIP_ARGS." >&2
  exit 1
}
# Import what a server imports: proves the environment, and compiles those modules alone (pip would have
# compiled everything, which takes longer than the rest).
env -u PYTHONDONTWRITEBYTECODE PYTHONPATH="$kit/hooks" SGLANG_USE_CPU_ENGINE=1 TRITON_INTERPRET=1 \
  "$venv/bin/python" -W ignore - <<'PY'
import importlib.metadata

import sglang.launch_server
import sglang.srt.entrypoints.http_server
import sglang.srt.managers.scheduler
import torch

for name in ("sglang", "torch", "transformers", "triton"):
    print(name, importlib.metadata.version(name))
if torch.version.cuda:
    print(f"note: this torch is a CUDA {torch.version.cuda} build; a CPU-only one is enough and far smaller")
PY
printf '%s' "$wanted" >"$stamp"
echo "$venv built in $SECONDS s"

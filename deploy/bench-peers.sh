#!/bin/sh
# bench-peers.sh FOLDER [PACKAGE...]: other load generators for `soak bench load --peers FOLDER`, each in an environment
# of its own. What cannot be had is said, and the others are installed all the same. PYTHON names the interpreter.
set -eu

folder=${1:?usage: bench-peers.sh FOLDER [PACKAGE...]}
shift
python=${PYTHON:-python3}
mkdir -p "$folder"
missing=0

have() { # NAME PACKAGE...
  name=$1
  shift
  if [ ! -f "$folder/$name/.complete" ]; then
    echo "peers: installing $name"
    rm -rf "${folder:?}/$name"
    if ! { "$python" -m venv "$folder/$name" && "$folder/$name/bin/python" -m pip install -qq "$@"; } \
      >"$folder/$name.log" 2>&1; then
      echo "peers: $name cannot be had; why is in $folder/$name.log" >&2
      missing=1
      return
    fi
    touch "$folder/$name/.complete"
  fi
  echo "peers: $("$folder/$name/bin/python" -c "from importlib.metadata import version; print('$name', version('$name'))")"
}

for name in ${*:-guidellm aiperf locust sglang}; do
  case $name in
  # bench_serving needs no engine: without its dependencies SGLang is a few megabytes instead of nine gigabytes
  sglang) have sglang --no-deps sglang && "$folder/sglang/bin/python" -m pip install -qq \
    aiohttp numpy requests tqdm transformers pybase64 pydantic pillow orjson packaging datasets >>"$folder/sglang.log" 2>&1 ;;
  *) have "$name" "$name" ;;
  esac
done
exit $missing

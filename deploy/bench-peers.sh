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

# sglang.bench_serving imports torch and most of the engine: with all of it an environment takes nine gigabytes. Name one
# that is there as SGLANG_ENV, or ask for it by name.
if [ -n "${SGLANG_ENV:-}" ]; then
  rm -rf "${folder:?}/sglang"
  ln -s "$(cd "$SGLANG_ENV" && pwd)" "$folder/sglang"
  echo "peers: sglang is that of $SGLANG_ENV"
fi
for name in ${*:-guidellm aiperf locust}; do
  have "$name" "$name"
done
exit $missing

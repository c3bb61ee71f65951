#!/bin/sh
# setup-venv.sh VENV [dev]: make the virtual environment that soak runs in, or bring it up to date.
# Cheap when nothing has changed: a stamp holds a checksum of pyproject.toml and of the interpreter. Two calls at
# once wait for each other. PYTHON names the interpreter; else the first python3 that is new enough is taken.
set -eu

cd "$(dirname "$0")/.."
venv=${1:?usage: setup-venv.sh VENV [dev]}
extra=${2:-}
work=build # ignored by git

fail() {
  echo "setup: $*" >&2
  exit 1
}

new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

choose_python() {
  if [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null 2>&1 || fail "PYTHON=$PYTHON: no such program"
    new_enough "$PYTHON" || fail "PYTHON=$PYTHON is $("$PYTHON" -V 2>&1); soak needs Python 3.11 or newer"
    echo "$PYTHON"
    return
  fi
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null 2>&1 && new_enough "$name"; then
      echo "$name"
      return
    fi
  done
  found=$(python3 -V 2>&1) || found="no python3"
  fail "soak needs Python 3.11 or newer and found $found; install one, or name it: make PYTHON=/path/to/python3"
}

state() {
  { cat pyproject.toml && "$venv/bin/python" -V; } 2>/dev/null | cksum
}

# A virtual environment does not survive being moved: its scripts name its old place.
usable() {
  new_enough "$venv/bin/python" && { [ ! -f "$venv/.soak-place" ] || [ "$(cat "$venv/.soak-place")" = "$(pwd)" ]; }
}

up_to_date() {
  [ -x "$venv/bin/soak" ] && usable && [ -f "$venv/.soak-$1" ] &&
    [ "$(cat "$venv/.soak-$1")" = "$(state)" ]
}

build() {
  # A dev environment has everything that running needs.
  if up_to_date dev || { [ -z "$extra" ] && up_to_date run; }; then
    return
  fi
  python=$(choose_python)
  if ! usable; then
    echo "setup: making $venv with $("$python" -V)"
    rm -rf "$venv"
    "$python" -m venv "$venv" >"$work/setup.log" 2>&1 || {
      cat "$work/setup.log" >&2
      rm -rf "$venv"
      fail "$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
    }
    pwd >"$venv/.soak-place"
  fi
  echo "setup: installing soak and what it needs into $venv"
  rm -f "$venv/.soak-run" "$venv/.soak-dev"
  "$venv/bin/python" -m pip install -qq -e ".[report${extra:+,$extra}]" ||
    fail "pip could not install soak and what it needs into $venv; its own words are above"
  state >"$venv/.soak-${extra:-run}"
}

# Several makes at once must not install into one environment at the same time. The lock goes with the process.
mkdir -p "$work"
if command -v flock >/dev/null 2>&1; then
  exec 9>"$work/setup.lock"
  flock 9
fi
build

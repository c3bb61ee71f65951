#!/usr/bin/env bash
# fetch.sh DIR: put a real Prometheus and Alertmanager, with promtool and amtool, into DIR/bin and name their versions.
# For Debian and its kin: packages are unpacked, never installed, but for the templates of Alertmanager, which Debian's
# looks for in one place only. The mirror is the one that this machine's apt already uses. Newer releases come from the
# suites first named; whichever of them runs on this machine is taken, down to the machine's own.
# SOAK_STACK_BIN=FOLDER uses binaries that are there already.
set -euo pipefail

dir=${1:?usage: fetch.sh DIR}
programs=(prometheus promtool prometheus-alertmanager amtool)
suites=(testing stable "")

fail() {
  echo "stack: $*" >&2
  exit 1
}

versions() {
  local name
  for name in "${programs[@]}"; do
    "$1/$name" --version 2>&1 | head -1 || return 1
  done
}

runs() {
  local name
  for name in "${programs[@]}"; do
    [ -x "$1/$name" ] && "$1/$name" --version >/dev/null 2>&1 || return 1
  done
}

# templates UNPACKED: put Alertmanager's templates where it will look for them, unless it brings or finds its own.
templates() {
  local place=/usr/share/prometheus/alertmanager name
  if [ -e "$place/default.tmpl" ] || [ ! -d "$1$place" ]; then
    return
  fi
  for name in "$1$place"/*.tmpl; do
    install -D -m 644 "$name" "$place/$(basename "$name")" ||
      fail "Debian's Alertmanager reads its templates from $place, which this user cannot write: " \
        "run this once as root, or apt-get install prometheus-alertmanager"
  done
}

if [ -n "${SOAK_STACK_BIN:-}" ]; then
  mkdir -p "$dir/bin"
  for name in "${programs[@]}"; do
    found=$SOAK_STACK_BIN/$name
    [ "$name" = prometheus-alertmanager ] && [ ! -x "$found" ] && found=$SOAK_STACK_BIN/alertmanager
    [ -x "$found" ] || fail "SOAK_STACK_BIN=$SOAK_STACK_BIN has no $name"
    ln -sfn "$(realpath "$found")" "$dir/bin/$name"
  done
fi
mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9
if runs "$dir/bin"; then
  templates "$(realpath "$(realpath "$dir/bin")/../..")"
  versions "$dir/bin"
  exit
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  fail "no apt-get here; put prometheus, promtool, alertmanager and amtool into a folder and name it in SOAK_STACK_BIN"

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v -e security -e nodesource |
  grep -m1 '/debian/\?$') || fail "apt has no Debian mirror configured (apt-get indextargets)"

# get SUITE ROOT: unpack the packages of that suite, or of the machine's own sources, into ROOT.
get() {
  local suite=$1 root=$2 options=() wanted=(prometheus prometheus-alertmanager)
  mkdir -p "$root/lists/partial" "$root/cache/archives/partial" "$root/debs"
  options=(-qq -o "Dir::State::lists=$root/lists" -o "Dir::Cache=$root/cache" -o Acquire::Check-Valid-Until=false
    -o Acquire::Languages=none -o APT::Sandbox::User=root)
  if [ -n "$suite" ]; then
    echo "deb $mirror $suite main" >"$root/sources.list"
    options+=(-o "Dir::Etc::sourcelist=$root/sources.list" -o Dir::Etc::sourceparts=-)
  fi
  apt-get "${options[@]}" update || return 1
  # promtool is a package of its own in newer releases, and part of prometheus in older ones
  if apt-cache "${options[@]}" show promtool >/dev/null 2>&1; then
    wanted+=(promtool)
  fi
  (cd "$root/debs" && apt-get "${options[@]}" download "${wanted[@]}") || return 1
  local deb
  for deb in "$root"/debs/*.deb; do
    dpkg-deb -x "$deb" "$root/unpacked" || return 1
  done
}

for suite in "${suites[@]}"; do
  root=$dir/${suite:-own}
  rm -rf "$root"
  if get "$suite" "$root" >"$dir/fetch.log" 2>&1 && runs "$root/unpacked/usr/bin"; then
    templates "$root/unpacked"
    ln -sfn "$root/unpacked/usr/bin" "$dir/bin"
    rm -rf "$root/lists" "$root/cache" "$root/debs"
    versions "$dir/bin"
    exit
  fi
  echo "stack: nothing that runs here from ${suite:-the suite of this machine}; see $dir/fetch.log" >&2
done
fail "no Prometheus could be had; its last words are in $dir/fetch.log"

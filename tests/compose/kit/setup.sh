#!/usr/bin/env bash
# setup.sh: what the container tests need and no registry gives, into build/compose. Debian and its kin, root, network
# to the package mirrors that this machine's apt and pip already use. Idempotent; `make clean` removes it.
#   tools/       dockerd, docker, compose, buildx and containerd of Debian's stable release, unpacked, not installed
#   base.tar     a Debian userland with Python, unpacked but not configured: the base of all images
#   wheels/      what soak's image installs: the engine has no way out of its own network
#   sglang/      files of the SGLang release that carries only one of the two fixes, for the server image
# Says "NOT RUN: why" and ends with 3 on a machine that cannot run containers so.
set -euo pipefail
cd "$(dirname "$0")/../../.."
kit=tests/compose/kit
work=$PWD/build/compose
python=${SETUP_PYTHON:-.venv/bin/python}

not_run() {
  printf '=== NOT RUN: nothing was tested with containers\nNOT RUN: the container tests: %s\n' "$*"
  exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || not_run "they want Linux on x86_64; this is $(uname -sm)"
[ "$(id -u)" = 0 ] || not_run "they start a container engine, which takes root"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  not_run "they make their images from Debian packages, and there is no apt-get here"
grep -qw overlay /proc/filesystems || not_run "this kernel has no overlay file system"
unshare --mount --net --pid --ipc --fork --mount-proc true 2>/dev/null ||
  not_run "this machine does not let root make namespaces"

mkdir -p "$work"
exec 9>"$work/lock"
flock 9

# What was made from another state of these files is made again.
state=$(cat "$kit/setup.sh" "$kit/sglang-base.txt" pyproject.toml | cksum)
if [ ! -f "$work/state" ] || [ "$(cat "$work/state")" != "$state" ]; then
  rm -rf "$work"/{base.tar,tools,wheels,sglang}
  echo "$state" >"$work/state"
fi

phase() {
  local name=$1 started=$SECONDS
  shift
  "$@" >"$work/$name.log" 2>&1 || {
    tail -n 30 "$work/$name.log" >&2
    echo "compose: $name failed; all it said is in $work/$name.log" >&2
    return 1
  }
  echo "compose: $name ready after $((SECONDS - started)) s"
}

mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | grep -m1 '/debian/\?$'
}

host_packages() {
  local name missing=()
  for name in iptables runc mmdebstrap tini; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} = 0 ] && return
  apt-get -q update
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}"
}

# The engine is taken from the stable suite: the machine's own may be too old for the compose file.
tools() {
  local root=$work/engine url
  url=$(mirror)
  rm -rf "$root" "$work/tools"
  mkdir -p "$root"/{lists,cache/archives}/partial "$root/debs" "$work/tools"/{bin,cli-plugins}
  echo "deb $url stable main" >"$root/sources.list"
  local options=(-qq -o "Dir::Etc::sourcelist=$root/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$root/lists" -o "Dir::Cache=$root/cache" -o Acquire::Check-Valid-Until=false
    -o Acquire::Languages=none -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  (cd "$root/debs" &&
    apt-get "${options[@]}" download docker.io docker-cli docker-compose docker-buildx containerd)
  for deb in "$root"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --exclude='./usr/share/*'
  done
  ln "$root"/usr/{sbin/dockerd,sbin/docker-proxy,bin/docker,bin/containerd,bin/containerd-shim-runc-v2} \
    "$work/tools/bin/"
  ln "$root"/usr/libexec/docker/cli-plugins/docker-{buildx,compose} "$work/tools/cli-plugins/"
  ln -s "$(command -v tini-static)" "$work/tools/bin/docker-init"
  rm -rf "$root"
  "$work/tools/bin/dockerd" --version
  "$work/tools/cli-plugins/docker-compose" version
}

base() {
  rm -rf "$work/base.tar.part"
  local suite=bookworm # its Python is 3.11, as the wheels below
  local scratch=/tmp
  [ -w /dev/shm ] && [ "$(df --output=avail -B1M /dev/shm | tail -1)" -gt 1500 ] && scratch=/dev/shm
  TMPDIR=$scratch mmdebstrap --mode=root --variant=extract --format=tar --components=main \
    --include=base-files,base-passwd,bash,coreutils,dash,findutils,grep,sed,passwd,libc-bin,libstdc++6,procps,wget \
    --include=python3,python3-venv,python3-pip \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --customize-hook='cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"' \
    --customize-hook='cp "$1/usr/share/base-passwd/group.master" "$1/etc/group"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
    "$suite" "$work/base.tar.part" "$(mirror)"
  mv "$work/base.tar.part" "$work/base.tar"
}

wheels() {
  rm -rf "$work/wheels"
  "$python" - >"$work/requirements.txt" <<'PY'
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
print("\n".join(project["build-system"]["requires"] + project["project"]["dependencies"]))
PY
  "$python" -m pip download -q --disable-pip-version-check --only-binary=:all: --implementation cp \
    --python-version 3.11 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
    -d "$work/wheels.part" -r "$work/requirements.txt"
  mv "$work/wheels.part" "$work/wheels"
}

sglang() {
  local version
  version=$(<"$kit/sglang-base.txt")
  rm -rf "$work/sglang" "$work/sglang.part"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version 3.11 --platform manylinux_2_34_x86_64 --platform manylinux2014_x86_64 --platform any \
    -d "$work/sglang.part" "sglang==$version"
  "$python" -m zipfile -e "$work"/sglang.part/*.whl "$work/sglang.part/site"
  rm "$work"/sglang.part/*.whl
  mv "$work/sglang.part" "$work/sglang"
}

started=$SECONDS
phase host-packages host_packages
[ -f "$work/base.tar" ] || phase base base &
base=$!
trap 'kill "$base" 2>/dev/null || true' EXIT
[ -x "$work/tools/cli-plugins/docker-compose" ] || phase tools tools
phase monitoring tests/stack/kit/fetch.sh "$PWD/build/stack"
[ -d "$work/wheels" ] || phase wheels wheels
[ -d "$work/sglang" ] || phase sglang sglang
wait "$base"
trap - EXIT
echo "compose: everything ready after $((SECONDS - started)) s"

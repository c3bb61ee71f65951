#!/bin/sh
# make-secrets.sh [DIR]: write the secrets of docker-compose.yml that are not there yet, by default into secrets/.
# The folder is closed to others; the files in it are readable, because containers read them as users of their own.
set -eu
cd "$(dirname "$0")/.."
dir=${1:-secrets}
mkdir -p "$dir"
chmod 700 "$dir"

# put NAME VALUE: never over a file that is there.
put() {
  [ -e "$dir/$1" ] && return
  printf '%s' "$2" >"$dir/$1"
  chmod 644 "$dir/$1"
  echo "$dir/$1: $3"
}

random() {
  od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

put sglang_api_key "$(random)" "a random key for the server"
put grafana_admin_password "$(random)" "a random password for Grafana's user admin"
put hub_token "" "empty; a model hub's token, if the model is gated"
put alert_webhook_url "http://127.0.0.1:9/nobody-is-told-yet" \
  "NOBODY IS TOLD of alerts until you write the address of your receiver into it"

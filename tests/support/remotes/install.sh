#!/usr/bin/env bash
# Installs the servers that stand for remotes in the tests, apart from the project's own environment:
# mitmproxy and moto pin versions of packages that LangChain and SQLAlchemy need newer.
#
#   usage: bash tests/support/remotes/install.sh
#
# PYTHON (default python3, >= 3.10) makes the environment; LANGGRAPH_IDEM_REMOTES names another folder.
# Needs node >= 20 with npm. Running it again is quick: it does nothing when the pins have not changed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${LANGGRAPH_IDEM_REMOTES:-${XDG_CACHE_HOME:-$HOME/.cache}/langgraph-idem-tests}
python=${PYTHON:-python3}
npm_packages=(stripe-stateful-mock@0.0.16 maildev@3.0.0)

mkdir -p "$root"
# Two test runs that start together must not install into one folder at once.
exec 9>"$root/.lock"
if command -v flock >/dev/null; then flock 9; fi

install_servers() {
  local venv=$root/servers pins=$here/servers.txt
  if cmp -s "$pins" "$venv/installed.txt"; then return; fi
  echo "installing server programs into $venv" >&2
  rm -rf "$venv"
  if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
    uv venv --quiet --python "$(command -v "$python")" "$venv"
    uv pip install --quiet --python "$venv/bin/python" -r "$pins"
  else
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$pins"
  fi
  cp "$pins" "$venv/installed.txt"
}

install_npm() {
  local folder=$root/npm
  if [[ "$(cat "$folder/installed.txt" 2>/dev/null)" == "${npm_packages[*]}" ]]; then return; fi
  if ! command -v npm >/dev/null; then
    echo "npm is missing: install node >= 20 with npm, then run this again" >&2
    return 1
  fi
  echo "installing ${npm_packages[*]} into $folder" >&2
  rm -rf "$folder"
  mkdir -p "$folder"
  npm install --prefix "$folder" --no-audit --no-fund --no-package-lock --loglevel=error "${npm_packages[@]}" >&2
  echo "${npm_packages[*]}" >"$folder/installed.txt"
}

install_servers
install_npm
echo "$root"

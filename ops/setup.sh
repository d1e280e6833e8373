#!/usr/bin/env bash
# Makes .venv from requirements.lock. Uses uv where it is installed, else python's own venv and pip.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

fail() { echo "setup: $1" >&2; exit 1; }
command -v "$python" >/dev/null || fail "there is no $python; install Python 3.11 or newer, or name one: make setup PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old; install Python 3.11 or newer, or name one: make setup PYTHON=python3.12"

echo "setup: installing into .venv (the first time takes a minute or two)"
rm -f .venv/.done
if command -v uv >/dev/null; then
  uv venv --quiet --allow-existing --python "$python" .venv
  uv pip install --quiet --compile-bytecode --python .venv --require-hashes -r requirements.lock
  uv pip install --quiet --python .venv --no-deps --no-build-isolation -e .
else
  "$python" -m venv .venv || fail "python's venv module does not work; on Debian and Ubuntu: apt-get install python3-venv"
  .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
fi
touch .venv/.done

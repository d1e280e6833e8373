#!/usr/bin/env bash
# Makes .venv from requirements.lock. Uses uv where it is installed, else python's own venv and pip.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

fail() { echo "setup: $1" >&2; exit 1; }
command -v "$python" >/dev/null || fail "there is no $python; install Python 3.11 or newer, or name one: make setup PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old; install Python 3.11 or newer, or name one: make setup PYTHON=python3.12"

# Turns pip's many lines into one that moves.
show() {
  awk -v total="$(grep -c '==' requirements.lock)" -v terminal="$([ -t 2 ] && echo 1 || echo 0)" '
    function say(text) { printf terminal == "1" ? "\r\033[Ksetup: %s" : "setup: %s\n", text > "/dev/stderr" }
    /^Collecting / { if (++n % (terminal == "1" ? 1 : 25) == 0) say(n " of at most " total " packages found") }
    /^Installing collected/ { say("unpacking " n " packages") }
    END { if (terminal == "1") printf "\r\033[K" > "/dev/stderr" }'
}

echo "setup: installing into .venv (the first time takes a minute or two)"
rm -f .venv/.done
if command -v uv >/dev/null; then
  uv venv --quiet --allow-existing --python "$python" .venv
  uv pip install --quiet --compile-bytecode --python .venv --require-hashes -r requirements.lock
  uv pip install --quiet --python .venv --no-deps --no-build-isolation -e .
else
  "$python" -m venv .venv || fail "python's venv module does not work; on Debian and Ubuntu: apt-get install python3-venv"
  .venv/bin/pip install --disable-pip-version-check --progress-bar off --require-hashes -r requirements.lock | show
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
fi
touch .venv/.done

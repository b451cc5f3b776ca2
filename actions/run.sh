#!/usr/bin/env bash
# Runs one of kci's actions: run.sh plan|build|merge.
#
# kci is installed from the checkout that this script is part of, so the commit of the action is the version of the
# tool. That happens once for each job: later actions of the job find the environment and use it.
set -euo pipefail

if [ "$#" -ne 1 ] || [ -z "${RUNNER_TEMP:-}" ]; then
  echo "::error::run.sh takes one argument, plan, build or merge, and runs inside of a job only"
  exit 2
fi
action=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
checkout=$(dirname "$here")

# Python and the build of kci's package, which pip starts without -I, must not import from what a workflow sets for its
# own code. What kci runs in the end, compilers and tests, gets these variables as they are.
clean() {
  env -u PYTHONPATH -u PYTHONHOME -u PYTHONSTARTUP -u PYTHONINSPECT -u PYTHONUSERBASE "$@"
}

# Prints the first Python that is new enough and can make a virtual environment.
find_python() {
  local candidate found=()
  for candidate in python3.14 python3.13 python3.12 python3.11 python3 \
    /opt/python/cp314-cp314/bin/python /opt/python/cp313-cp313/bin/python \
    /opt/python/cp312-cp312/bin/python /opt/python/cp311-cp311/bin/python; do
    command -v "$candidate" > /dev/null 2>&1 || continue
    if "$candidate" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1; then
      command -v "$candidate"
      return 0
    fi
    found+=("$candidate ($("$candidate" -I -c 'import platform; print(platform.python_version())' 2> /dev/null || echo broken))")
  done
  echo "::error::kci needs Python 3.11 or newer with its venv module; on this runner: ${found[*]:-no Python at all}" >&2
  echo "Install one, or put actions/setup-python before this step. On Debian and Ubuntu: apt-get install python3-venv" >&2
  return 3
}

environment=$RUNNER_TEMP/kci-$(printf '%s' "$checkout" | cksum | tr -dc '0-9')
if [ ! -f "$environment/complete" ]; then
  echo "::group::Install kci from $checkout"
  python=$(find_python) || exit 3
  rm -rf "$environment"
  "$python" -I -m venv "$environment"
  if ! clean "$environment/bin/python" -I -m pip install --disable-pip-version-check --no-input --quiet "$checkout"; then
    echo "::error::kci cannot be installed; a runner without the package index needs kci's dependencies in a mirror"
    exit 3
  fi
  "$environment/bin/python" -I -m kci --version
  touch "$environment/complete"
  echo "::endgroup::"
fi

# -E: variables such as PYTHONPATH that a workflow sets for its own code must not reach kci.
exec "$environment/bin/python" -E -u "$here/$action.py"

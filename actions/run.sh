#!/usr/bin/env bash
# Runs one of kci's actions: run.sh ACTION, for src/kci/actions/ACTION.py.
#
# kci runs from the checkout that this script is part of, so the commit of the action is the version of the tool. What
# it depends on is locked with hashes beside this script and installed once for each job: later actions of the job find
# the environment and use it.
set -euo pipefail

if [ "$#" -ne 1 ] || [ -z "${RUNNER_TEMP:-}" ]; then
  echo "::error::run.sh takes one argument, the name of an action (build, plan, merge, ...), and runs inside of a job only"
  exit 2
fi
action=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

environment=$RUNNER_TEMP/kci-$(printf '%s' "${here%/*}" | cksum | tr -dc '0-9')
if [ ! -f "$environment/complete" ]; then
  echo "::group::Install what kci depends on"
  python=${KCI_PYTHON:-$(bash "$here/find_python.sh")}
  if [ -z "$python" ]; then
    echo "::error::kci needs Python 3.11 or newer, and this runner has none; put actions/setup-python before this step"
    exit 3
  fi
  # Python must not import from what a workflow sets for its own code. What kci runs in the end, compilers and tests,
  # gets these variables as they are.
  env -u PYTHONPATH -u PYTHONHOME -u PYTHONSTARTUP -u PYTHONINSPECT -u PYTHONUSERBASE \
    "$python" -I "$here/install.py" "$environment" || exit "$?"
  echo "::endgroup::"
fi

# What only one of the actions needs has a lock of its own, and is added to the environment.
if [ -f "$here/requirements-$action.txt" ] && [ ! -f "$environment/complete-$action" ]; then
  echo "::group::Install what $action depends on"
  python=${KCI_PYTHON:-$(bash "$here/find_python.sh")}
  env -u PYTHONPATH -u PYTHONHOME -u PYTHONSTARTUP -u PYTHONINSPECT -u PYTHONUSERBASE \
    "$python" -I "$here/install.py" "$environment" "$action" || exit "$?"
  echo "::endgroup::"
fi

python=$environment/bin/python
[ -x "$python" ] || python=$environment/Scripts/python.exe # on Windows
# -E: variables such as PYTHONPATH that a workflow sets for its own code must not reach kci. -P: nor must what lies in
# the folder that the job is in.
exec "$python" -E -P -u -m kci.actions "$action"

#!/usr/bin/env bash
# The workspace becomes a clone of the repository under test at its HEAD, whatever was in it before.
set -euo pipefail

if [ "$INPUT_PERSIST_CREDENTIALS" != false ]; then
  echo "::error::the workflow keeps the token in the checkout"
  exit 1
fi
cd "$GITHUB_WORKSPACE"
find . -mindepth 1 -delete
git init --quiet
depth=()
if [ "$INPUT_FETCH_DEPTH" != 0 ]; then
  depth=(--depth "$INPUT_FETCH_DEPTH")
fi
git fetch --quiet "${depth[@]}" "file://$KCI_ACT_REPOSITORY" HEAD
git checkout --quiet --detach FETCH_HEAD
echo "commit=$(git rev-parse HEAD)" >> "$GITHUB_OUTPUT"

# Installing kci takes longer than most jobs do. Where a test says so, the job finds it installed, as the second action of
# a job does; run.sh tells it by the place of the action.
if [ -n "${KCI_ACT_INSTALLED:-}" ]; then
  actions=$(cd "$GITHUB_ACTION_PATH/.." && pwd -P)
  for action in kci-build kci-build-plan kci-build-merge; do
    ln -sfn "$KCI_ACT_INSTALLED" "$RUNNER_TEMP/kci-$(printf '%s' "$actions/$action@v1" | cksum | tr -dc '0-9')"
  done
fi

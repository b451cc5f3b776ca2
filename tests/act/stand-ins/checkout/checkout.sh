#!/usr/bin/env bash
# The workspace becomes a clone of the repository under test at its HEAD, whatever was in it before.
set -euo pipefail

if [ -n "${KCI_ACT_FIND_INSTALLED:-}" ]; then bash "$KCI_ACT_FIND_INSTALLED"; fi

if [ "$INPUT_PERSIST_CREDENTIALS" != false ]; then
  echo "::error::the workflow keeps the token in the checkout"
  exit 1
fi
cd "$GITHUB_WORKSPACE"
mkdir -p "${INPUT_PATH:-.}"
cd "${INPUT_PATH:-.}"
find . -mindepth 1 -delete
git init --quiet
depth=()
if [ "$INPUT_FETCH_DEPTH" != 0 ]; then
  depth=(--depth "$INPUT_FETCH_DEPTH")
fi
git fetch --quiet "${depth[@]}" "file://$KCI_ACT_REPOSITORY" "${INPUT_REF:-HEAD}"
if [ -n "$INPUT_SPARSE_CHECKOUT" ]; then git sparse-checkout set --no-cone "$INPUT_SPARSE_CHECKOUT"; fi
git checkout --quiet --detach FETCH_HEAD
echo "commit=$(git rev-parse HEAD)" >> "$GITHUB_OUTPUT"

#!/usr/bin/env bash
# A name goes into the path itself. A pattern goes into one folder for each artifact if it matches several, and into the
# path itself if it matches one. Without token and run id the real action cannot fetch what an earlier attempt uploaded,
# so a workflow of ours without them fails here.
set -euo pipefail

if [ -n "${KCI_ACT_FIND_INSTALLED:-}" ]; then bash "$KCI_ACT_FIND_INSTALLED"; fi

if [ "$INPUT_MERGE_MULTIPLE" != false ]; then
  echo "::error::merge-multiple lets files of the same name replace each other"
  exit 1
fi
if [ "${GITHUB_RUN_ATTEMPT:-1}" != 1 ] && { [ -z "$INPUT_GITHUB_TOKEN" ] || [ -z "$INPUT_RUN_ID" ]; }; then
  echo "::error::without token and run id, artifacts of earlier attempts are missing"
  exit 1
fi
if [ -d "${KCI_ACT_RUNS:-/nonexistent}/$INPUT_RUN_ID" ]; then
  KCI_ACT_STORE=$KCI_ACT_RUNS/$INPUT_RUN_ID
elif [ "$INPUT_RUN_ID" != "$GITHUB_RUN_ID" ]; then
  echo "::error::no such run: $INPUT_RUN_ID"
  exit 1
fi
if [ -n "$INPUT_NAME" ]; then
  if [ ! -d "$KCI_ACT_STORE/$INPUT_NAME" ]; then
    echo "::error::Artifact not found for name: $INPUT_NAME"
    exit 1
  fi
  mkdir -p "$INPUT_PATH"
  cp -R "$KCI_ACT_STORE/$INPUT_NAME/." "$INPUT_PATH"
  exit
fi
# Braces, as the real one takes them.
shopt -s extglob
INPUT_PATTERN=${INPUT_PATTERN//"{"/"@("}
INPUT_PATTERN=${INPUT_PATTERN//,/|}
INPUT_PATTERN=${INPUT_PATTERN//"}"/")"}
found=()
for kept in "$KCI_ACT_STORE"/*; do
  # shellcheck disable=SC2053 # the pattern is meant to be a pattern
  if [ -d "$kept" ] && [[ $(basename "$kept") == $INPUT_PATTERN ]]; then found+=("$kept"); fi
done
for kept in "${found[@]}"; do
  mkdir -p "$INPUT_PATH"
  if [ "${#found[@]}" = 1 ]; then cp -R "$kept/." "$INPUT_PATH"; else cp -R "$kept" "$INPUT_PATH"; fi
done
echo "Total of ${#found[@]} artifact(s) downloaded"

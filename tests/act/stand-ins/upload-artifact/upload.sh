#!/usr/bin/env bash
# What is true of the real action and matters here: a name can be used once, some characters are refused, hidden files
# are left out, and permissions are lost.
set -euo pipefail

case "$INPUT_NAME" in
  "" | *[\":\<\>\|\*\?\\/]* | *$'\n'* | *$'\r'*)
    echo "::error::not a name for an artifact: $INPUT_NAME"
    exit 1
    ;;
esac
if [ ! -e "$INPUT_PATH" ]; then
  echo "No files were found: $INPUT_PATH"
  [ "$INPUT_IF_NO_FILES_FOUND" != error ]
  exit
fi
kept=$KCI_ACT_STORE/$INPUT_NAME
mkdir -p "$KCI_ACT_STORE"
if [ "$INPUT_OVERWRITE" = true ]; then rm -rf "$kept"; fi
if ! mkdir "$kept" 2> /dev/null; then
  echo "::error::(409) Conflict: an artifact with this name already exists: $INPUT_NAME"
  exit 1
fi
if [ -d "$INPUT_PATH" ]; then
  cp -RL "$INPUT_PATH/." "$kept"
else
  cp -L "$INPUT_PATH" "$kept"
fi
find "$kept" -mindepth 1 -name '.*' -prune -exec rm -rf {} +
find "$kept" -type f -exec chmod 644 {} +
{
  echo "artifact-id=$INPUT_NAME"
  echo "artifact-url=file://$kept"
} >> "$GITHUB_OUTPUT"

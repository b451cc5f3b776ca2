#!/usr/bin/env bash
# Installing kci takes longer than most jobs do. Where a test says so, the first action of a job calls this, and the job
# finds kci installed, as the second action of a job does. actions/run.sh tells it by the place of the action.
set -euo pipefail

asked=$RUNNER_TEMP/kci-actions
if [ -d "$asked" ]; then exit; fi
mkdir "$asked"
actions=$(cd "$GITHUB_ACTION_PATH/.." && pwd -P)
for action in $KCI_ACT_ACTIONS; do
  printf '%s' "$actions/$action@v1" > "$asked/$action"
done
cd "$asked"
# One process for all of them: this runs in every job.
cksum -- * | while read -r sum size _; do ln -s "$KCI_ACT_INSTALLED" "$RUNNER_TEMP/kci-$sum$size"; done

#!/usr/bin/env bash
# Installing kci takes longer than most jobs do. Where a test says so, the first action of a job calls this, and the job
# finds kci installed, as the second action of a job does. actions/run.sh tells it by the place of the action.
set -euo pipefail

actions=$(cd "$GITHUB_ACTION_PATH/.." && pwd -P)
for action in kci-build{,-plan,-merge,-gate,-test,-publish,-record,-decide,-propose}; do
  ln -sfn "$KCI_ACT_INSTALLED" "$RUNNER_TEMP/kci-$(printf '%s' "$actions/$action@v1" | cksum | tr -dc '0-9')"
done

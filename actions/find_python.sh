#!/usr/bin/env bash
# Prints the first Python that is new enough for kci; nothing where a runner has none.
set -euo pipefail

suits='import sys
from importlib.machinery import PathFinder
sys.exit(sys.version_info < (3, 11) or PathFinder.find_spec("venv") is None)'

# The one that the job has under its plain name comes first: of a version manager, each name takes a long time to ask.
for candidate in python3 python python3.14 python3.13 python3.12 python3.11 \
  /opt/python/cp314-cp314/bin/python /opt/python/cp313-cp313/bin/python \
  /opt/python/cp312-cp312/bin/python /opt/python/cp311-cp311/bin/python; do
  command -v "$candidate" > /dev/null 2>&1 || continue
  # Each is tried: the name may be that of a version manager without the version, or of Windows' shop.
  if "$candidate" -I -S -c "$suits" > /dev/null 2>&1; then
    command -v "$candidate"
    exit
  fi
done

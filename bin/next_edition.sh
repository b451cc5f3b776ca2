#!/usr/bin/env bash
# Looks for the edition of the catalog that follows kci's default one, for .github/workflows/edition.yml.
#
#     bash bin/next_edition.sh FOLDER [OPTION]...
#
# FOLDER gets the edition, what it changes for the examples, and README.md with the matrix that it gives. OPTIONs are
# those of `kci catalog next`. It says moved=true where users would get other toolchains by it.
set -euo pipefail
folder=$1
shift
today=$(date -u +%F)
mkdir -p "$folder"
{
  echo 'What is unknown is to be filled in by hand. To have this checked, close and reopen it.'
  echo '```text'
  kci catalog next examples --as-of "$today" --into "$folder/$today.toml" "$@"
  echo '```'
} > "$folder/changes.md"
cat "$folder/changes.md"
python -c '
import re, subprocess, sys
from pathlib import Path
def shown(found):
    command = ["kci", *found[2].split(), "--catalog", sys.argv[1]]
    return found[1] + subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8").stdout
text = Path("README.md").read_text(encoding="utf-8")
text, made = re.subn(r"(^\$ kci (matrix .*)\n)(?:(?!```).*\n)*", shown, text, count=1, flags=re.MULTILINE)
assert made, "README.md shows no matrix"
Path(sys.argv[2]).write_text(text, encoding="utf-8")
' "$folder/$today.toml" "$folder/README.md"
moved=$(python -c '
import sys
from kci.catalog.loading import load_catalog
now, then = ({(row.key, row.tvm_ffi) for row in load_catalog(name).rows if row.bundled} for name in (None, sys.argv[1]))
print("false" if now == then else "true")
' "$folder/$today.toml")
echo "moved=$moved" >> "${GITHUB_OUTPUT:-/dev/stdout}"

#!/usr/bin/env bash
# Installs the course from the parts beside this script. No network is used. Safe to run again: what is done is kept.
set -euo pipefail

usage() {
  cat <<END
bash install.sh [--dest FOLDER] [--python PYTHON] [--torch-from PYTHON]

  --dest FOLDER        where the course goes; "servinglab" beside this script when left out
  --python PYTHON      interpreter of the new environment
  --torch-from PYTHON  take PyTorch (such as a CUDA build) from this interpreter instead of the bundle

The weights go to the cache folder: SERVINGLAB_CACHE, or ~/.cache/servinglab.
END
}
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }
fact() { sed -n "s/^$1=//p" bundle.txt; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none; }

start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"
dest=$PWD/servinglab python="" torch_from=""
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --dest | --python | --torch-from) [ $# -ge 2 ] || fail "$1 needs a value; see bash install.sh --help" ;;&
    --dest) dest=$2; [ "${dest#/}" != "$dest" ] || dest=$start/$dest ;;
    --python) python=$2 ;;
    --torch-from) torch_from=$2 ;;
    *) fail "there is no option $1; see bash install.sh --help" ;;
  esac
  shift 2
done
# A relative path of an interpreter is meant from where you are, a bare name from PATH.
case $python in */*) python=$(cd "$start" && realpath -s "$python") ;; esac
case $torch_from in */*) torch_from=$(cd "$start" && realpath -s "$torch_from") ;; esac

[ -f SHA256SUMS ] || fail "SHA256SUMS is missing in $PWD; copy the whole folder of the bundle."
while read -r _ name; do
  [ -f "$name" ] || fail "the part $name is missing in $PWD; copy it there and run this again."
done <SHA256SUMS
echo "checking the parts"
damaged=$(sha256sum --check --quiet SHA256SUMS 2>/dev/null | sed -n 's/: FAILED.*//p') || true
[ -z "$damaged" ] || fail "damaged on its way here (other checksum): $(echo $damaged); copy again and run this again."

wanted=$(fact python)
if [ -n "$torch_from" ]; then
  [ "$(version_of "$torch_from")" = "$wanted" ] ||
    fail "the bundle is for Python $wanted and $torch_from is Python $(version_of "$torch_from"); make one for it."
  base='import sys; print(getattr(sys, "_base_executable", "") or sys.executable)'
  [ -n "$python" ] || python=$("$torch_from" -c "$base")
fi
if [ -z "$python" ]; then
  for candidate in "python$wanted" python3 python; do
    if [ "$(version_of "$candidate")" = "$wanted" ]; then python=$candidate; break; fi
  done
  [ -n "$python" ] ||
    fail "the bundle is for Python $wanted and none is on PATH; name one: --python /path/to/python$wanted"
fi
[ "$(version_of "$python")" = "$wanted" ] ||
  fail "the bundle is for Python $wanted and $python is Python $(version_of "$python"); make one for it."

if [ -e "$dest" ] && [ ! -e "$dest/.bundle" ] && [ -n "$(ls -A "$dest")" ]; then
  fail "$dest exists and was not made by install.sh; choose another folder: --dest FOLDER"
fi
mkdir -p "$dest" && touch "$dest/.bundle" || fail "$dest cannot be written; choose another folder: --dest FOLDER"
exec 9>"$dest/.bundle-lock"
if command -v flock >/dev/null; then
  flock --nonblock 9 || fail "another install.sh works on $dest; wait for its end."
fi
rm -rf "$dest/.new" && mkdir "$dest/.new"
unpacked() { cat "$1".* | tar -x $2 --no-same-owner -C "$dest/.new"; }
unpacked course.tar.gz -z && unpacked data.tar "" ||
  fail "the course cannot be unpacked in $dest; see the line above, free some room there or choose another --dest."
"$python" -E -s "$dest/.new/tools/bundle/install.py" "$PWD" "$dest" ${torch_from:+"$torch_from"}

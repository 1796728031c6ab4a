#!/usr/bin/env bash
# Makes .venv: the whole environment of the course, from the locks beside this script. `make setup` runs it.
# With the argument `edge` makes .edge, which exports a model for Edge-LLM. `make edge` runs that.
#
#   PYTHON   interpreter to use; when unset, the first of python3, python3.12, python3.11, python3.10 that is supported
#   TORCH    which build of torch:
#     cpu    PyTorch's CPU build. uv knows where it is; pip must be told (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS).
#     cuda   the build that PyPI has.
#     any    whichever build of the locked version your installer finds first. Its hash is not checked.
#     auto   without an NVIDIA driver cpu, or cuda where no CPU build is found. With a driver cuda, but any with uv,
#            which takes the build that fits the driver.
#
# Every wheel is checked against the hashes of its lock, and nothing is built from source but the course itself, with
# the setuptools of the lock.
#
# Safe to interrupt: a half-made .venv is marked and made anew next time; the stamp is written last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-course} in
  course) venv=.venv lock=lock.txt ;;
  edge) venv=.edge lock=edge.txt ;;
  *) echo "course: there is no environment $1; only edge, and without an argument that of the course." >&2; exit 1 ;;
esac
stamp=$venv/.course-stamp
unfinished=$venv/.course-unfinished
supported="3.10, 3.11 and 3.12"
torch=${TORCH:-auto}

say() { printf '%s\n' "$*"; }
fail() { say "course: $*" >&2; exit 1; }
is_supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1; }
version() { local found; found=$("$1" -V) && say "${found%.*}"; } # such as Python 3.11

case $torch in
  auto | cpu | cuda | any) ;;
  *) fail "TORCH=$torch is unknown; use cpu, cuda, any or auto." ;;
esac

case $PWD in
  *[![:ascii:]]*) fail "$PWD has letters beyond ASCII in its path, which Triton's Python backend cannot read;" \
    "move the course to a folder without them." ;;
esac

if [ -n "${PYTHON:-}" ]; then
  is_supported "$PYTHON" ||
    fail "$PYTHON is not a Python that the course runs on; it needs $supported (the embedded Triton has no others)."
  if is_supported "$venv/bin/python" && [ "$(version "$PYTHON")" != "$(version "$venv/bin/python")" ]; then
    fail "$venv is one of $(version "$venv/bin/python"); move it away, and make setup makes one of $PYTHON."
  fi
fi

# One setup at a time: a second one waits, and then finds everything done.
mkdir -p build
exec 9>build/.setup-lock
if command -v flock >/dev/null; then flock 9; fi

wanted=$(cat pyproject.toml requirements/*.txt requirements/setup.sh | cksum)" torch=$torch"
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
  if [ -z "$python" ]; then
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
    uv venv --quiet --allow-existing --python "$python" "$venv"
  else
    "$python" -m venv "$venv" || fail "$python has no venv module; on Debian and Ubuntu: apt install python3-venv"
  fi
fi
touch "$unfinished"

say "installing the locked packages (the first time takes minutes)"
quiet=(--quiet)
if [ -t 1 ]; then quiet=(); fi # in a terminal the installer shows its progress
if command -v uv >/dev/null; then
  tool=(uv pip install "${quiet[@]}" --python "$venv/bin/python")
  # uv does not read pip's configuration; packages on your disk that pip would find are offered to it here.
  for place in ${PIP_FIND_LINKS:-}; do tool+=(--find-links "$place"); done
else
  # Without --no-compile pip compiles every module of every package, most of which nobody imports.
  tool=("$venv/bin/python" -m pip install "${quiet[@]/--quiet/-qq}" --no-compile --disable-pip-version-check)
fi
locked() { "${tool[@]}" --no-deps --require-hashes --requirement "$@"; }
uv_knows() { [ "${tool[0]}" = uv ] && [ -z "${PIP_FIND_LINKS:-}" ]; }
cpu() { if uv_knows; then locked requirements/torch-cpu.txt --torch-backend cpu; else locked requirements/torch-cpu.txt; fi; }
cuda() { locked requirements/torch-cuda.txt; }
any() { # with what that build needs
  local version
  version=$(sed -n 's/^torch===\([0-9.]*\).*/\1/p' requirements/torch-cuda.txt)
  if uv_knows; then "${tool[@]}" "torch==$version" --torch-backend auto; else "${tool[@]}" "torch==$version"; fi
}
auto() {
  if command -v nvidia-smi >/dev/null; then
    if uv_knows; then any; else cuda; fi
  elif ! cpu 2>/dev/null; then
    say "no CPU build of torch with a hash of requirements/torch-cpu.txt is found; taking the one with CUDA (about 3 GB)"
    cuda
  fi
}
locked "requirements/$lock"
"$torch" || fail "torch was not installed. The lines above say why, and README.md where each of its builds comes from."
if [ "$venv" = .venv ]; then "${tool[@]}" --no-deps --no-build-isolation --editable .; fi

printf '%s' "$wanted" >"$stamp"
rm -f "$unfinished"
say "environment ready in $((SECONDS - started)) s: $("$venv/bin/python" -V), $venv"

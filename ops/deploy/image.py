"""`python -m ops.deploy.image` builds the image with buildah, runs it like a container runtime, and prints the figures.

Needs root and buildah. Without `--base`, debootstrap is also needed; it builds a base image with Debian's Python, so no
image registry need be reachable. The container is a chroot in its own namespaces, with the image's user, a read-only
root file system, a volume and a tmpfs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "ops" / "deploy" / "Dockerfile"
BASE = "localhost/debian-python"
PACKAGES = "python3,python3-venv,ca-certificates"
_FACT = "Staging needs the VPN"
_READY_WITHIN_S = 60.0
_ENTER = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
mount -t proc proc "$1/proc" && mount -t tmpfs -o mode=1777 tmpfs "$1/tmp" && mount --bind "$2" "$1/data"
mount --rbind /dev "$1/dev"
shift 2; exec "$@"
"""


class Builder:
    """Runs buildah with separate storage, and without a daemon, mounts or network namespaces."""

    def __init__(self, folder: Path) -> None:
        self._policy = folder / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        storage = folder / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n')
        self._environment = os.environ | {"CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, verb: str, *words: str) -> str:
        policy = ("--signature-policy", str(self._policy)) if verb in ("build", "commit", "from") else ()
        command = ["buildah", verb, *policy, *words]
        out = None if verb == "build" else subprocess.PIPE
        return (subprocess.run(command, stdout=out, text=True, check=True, env=self._environment).stdout or "").strip()

    def make_base(self, folder: Path) -> None:
        """Build a Debian image with Python."""
        source = ("trixie", str(folder / "debian"), "http://deb.debian.org/debian")
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", *source], check=True, stdout=2)
        for cached in ("var/cache/apt", "var/lib/apt/lists"):
            shutil.rmtree(folder / "debian" / cached)
        container = self("from", "scratch")
        self("add", "--quiet", container, str(folder / "debian"), "/")
        self("commit", "--quiet", "--format", "docker", container, BASE)
        self("rm", container)


class Container:
    """An image's root file system, and how to run commands in it."""

    def __init__(self, root: Path, data: Path, config: dict[str, Any]) -> None:
        self._root, self._data, self.config = root, data, config

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the image's command as process 1 of a namespace."""
        start = self._chrooted(*self.config["Entrypoint"], *self.config["Cmd"])
        inside = ["bash", "-ec", _ENTER, "bash", str(self._root), str(self._data), *start]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", *inside]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                while not first_of(process) and process.poll() is None:
                    time.sleep(0.01)
                yield process
            finally:
                process.kill()

    def run(self, process: subprocess.Popen[bytes], *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `docker exec` would."""
        enter = ["nsenter", "--target", str(first_of(process)), "--mount", "--pid", *self._chrooted(*words)]
        return subprocess.run(enter, capture_output=True, text=True, check=False)

    def _chrooted(self, *words: str) -> list[str]:
        variables = (str(one) for one in self.config["Env"])
        return ["chroot", f"--userspec={self.config['User']}", str(self._root), "env", "-i", *variables, *words]


def first_of(process: subprocess.Popen[bytes]) -> int:
    """Return the PID of the namespace's init process as seen from outside the namespace, or 0 if it has not started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


def wait_until_healthy(container: Container, process: subprocess.Popen[bytes]) -> float:
    """Run the health check until it succeeds; return the time in seconds."""
    began_s = time.monotonic()
    check = container.config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    while time.monotonic() - began_s < _READY_WITHIN_S:
        if container.run(process, *check[1:]).returncode == 0:
            return round(time.monotonic() - began_s, 1)
        time.sleep(0.1)
    raise AssertionError("the container did not become healthy")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the container as a service manager does."""
    os.kill(first_of(process), signal.SIGTERM)
    assert process.wait(60) == 0


def try_out(container: Container) -> dict[str, Any]:
    """Store a memory, stop the container, start another on the same volume, and recall; return the figures."""
    with container.running() as process:
        first_s = wait_until_healthy(container, process)
        remembered = container.run(process, "memory-agent", "remember", _FACT)
        assert remembered.returncode == 0, remembered.stderr
        assert container.run(process, "touch", "/opt/memory-agent/file").returncode
        assert container.run(process, "id", "-u").stdout == "10001\n"
        status = json.loads(container.run(process, "memory-agent", "status", "--json").stdout)
        stop(process)
    with container.running() as process:
        again_s = wait_until_healthy(container, process)
        found = container.run(process, "memory-agent", "recall", "what does staging need?", "--json")
        assert json.loads(found.stdout)["memories"][0]["record"]["text"] == _FACT
        assert not json.loads(found.stdout)["degraded"]  # by vectors too: the model is in the image
        stop(process)
    resident = sum(part["resident_bytes"] for part in status["parts"])
    return {"form": status["form"], "healthy_s": first_s, "healthy_again_s": again_s, "resident_mb": resident // 10**6}


def main() -> int:
    """Build the image, try it out, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--base", help="the base image (default: one built with debootstrap)")
    parser.add_argument("--build-arg", action="append", default=[], help="passed on, such as EXTRAS=cluster")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the container's user must be able to traverse it
        builder = Builder(folder)
        if given.base is None:
            builder.make_base(folder)
        words = [word for pair in (f"BASE={given.base or BASE}", *given.build_arg) for word in ("--build-arg", pair)]
        words += ["--format", "docker", "--network", "host", "--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
        began_s = time.monotonic()
        builder("build", *words, "--file", str(DOCKERFILE), "--tag", "memory-agent", str(ROOT))
        built_s = round(time.monotonic() - began_s)
        config = json.loads(builder("inspect", "--type", "image", "memory-agent"))["Docker"]["config"]
        root = Path(builder("mount", builder("from", "--pull-never", "memory-agent")))
        data = folder / "data"
        data.mkdir(mode=0o700)
        os.chown(data, *map(int, config["User"].split(":")))
        sizes = [int(subprocess.check_output(["du", "-sm", path]).split()[0]) for path in (root, root / "opt")]
        figures = {"build_s": built_s, "size_mb": sizes[0], "of_it_ours_mb": sizes[1]}
        print(json.dumps(figures | try_out(Container(root, data, config))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

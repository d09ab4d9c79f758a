"""Run the Containerfile without a container engine: its instructions as written, then its image as users do.

    sudo python3 scripts/try_container.py

Each stage is an empty directory in which this machine's /usr and Python, both read-only, take the place of
the base image. RUN is executed there by chroot. Then the image's command runs as the image's user, in a
separate network: the health check must fail before the start and pass after it, a signal must stop the
server with exit code 0, and accounts must outlive it. Needs Linux, root and util-linux. If npm is there, the
syntax is checked as well, by dockerfile-utils.
"""

import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTAINERFILE = ROOT / "Containerfile"
CHECKER = "dockerfile-utils@0.16.3"
READY_SECONDS = 60
_CLONE_NEWNET = 0x40000000
_OF_ETC = (
    "group",
    "gshadow",
    "ld.so.cache",
    "login.defs",
    "nsswitch.conf",
    "passwd",
    "resolv.conf",
    "shadow",
)
_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile: keyword and the rest, continued lines joined."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


@dataclass
class Stage:
    """A stage of the build.

    Attributes:
        root: its root directory.
        env: environment of its commands.
        directory: working directory.
        settings: the last value of each other instruction, such as CMD.
    """

    root: Path
    env: dict[str, str]
    directory: str = "/"
    settings: dict[str, str] = field(default_factory=dict)

    def inside(self, path: str) -> Path:
        """Return where a path of the stage is on this machine."""
        return self.root / os.path.normpath(f"{self.directory}/{path}" if path[0] != "/" else path)[1:]

    @property
    def user(self) -> str:
        """The user of the image, and its group, as chroot takes them."""
        uid = self.settings["USER"]
        entries = [line.split(":") for line in (self.root / "etc/passwd").read_text("utf-8").splitlines()]
        return next(f"{each[2]}:{each[3]}" for each in entries if uid in (each[0], each[2]))

    def command(self, *words: str, user: str | None = None) -> list[str]:
        """Return the command that runs words within the stage, as root or as a user."""
        by = [] if user is None else [f"--userspec={user}", "--groups="]
        return ["chroot", *by, str(self.root), "sh", "-c", f'cd {self.directory} && exec "$@"', "sh", *words]


def build(scratch: Path, passed: Mapping[str, str]) -> Stage:
    """Carry out the instructions of every stage, and return the last one."""
    stages: dict[str, Stage] = {}
    stage = Stage(scratch, {})
    for keyword, rest in instructions(CONTAINERFILE.read_text("utf-8")):
        print(f"{keyword} {rest}", flush=True)
        if keyword == "FROM":
            stage = Stage(scratch / str(len(stages)), base_environment())
            furnish(stage.root)
            stages[rest.partition(" AS ")[2] or str(len(stages))] = stage
        elif keyword == "WORKDIR":
            stage.directory = rest
            stage.inside(".").mkdir(parents=True, exist_ok=True)
        elif keyword == "COPY":
            copy(rest.split(), stage, stages)
        elif keyword == "RUN":
            command = stage.command("/bin/sh", "-c", rest)
            subprocess.run(command, env={**passed, **stage.env}, check=True, stdout=subprocess.DEVNULL)
        elif keyword == "ENV":
            for name, _, value in (word.partition("=") for word in shlex.split(rest)):
                stage.env[name] = value.replace(f"${name}", stage.env.get(name, ""))
        else:
            stage.settings[keyword] = rest
    return stage


def copy(words: Sequence[str], stage: Stage, stages: Mapping[str, Stage]) -> None:
    """Copy files of the checkout, or of an earlier stage, into a stage."""
    origin = stages[words[0].removeprefix("--from=")] if words[0].startswith("--from=") else None
    *sources, target = words[1:] if origin else words
    for name in sources:
        source, place = origin.inside(name) if origin else ROOT / name, stage.inside(target)
        if source.is_dir():
            shutil.copytree(source, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, place / source.name if target.endswith("/") else place)


def base_environment() -> dict[str, str]:
    """Return the environment of the base image: a path on which `python` is found."""
    return {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"}


def furnish(root: Path) -> None:
    """Put into an empty directory what a base image has: /usr, Python, and a few files of /etc."""
    for name in ("etc", "proc", "root", "tmp", "usr", "var/tmp"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in _LINKS:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
        elif Path("/", name).is_dir():
            bind(Path("/", name), root)
    bind(Path("/usr"), root)
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        bind(Path(sys.base_prefix), root)
    for name in _OF_ETC:
        if Path("/etc", name).is_file():
            shutil.copy2(Path("/etc", name), root / "etc" / name)
    if Path("/etc/ssl/certs").is_dir():
        bind(Path("/etc/ssl/certs"), root)
    bind(Path("/dev"), root, read_only=False)
    mount("-t", "proc", "proc", str(root / "proc"))


def bind(path: Path, root: Path, *, read_only: bool = True) -> None:
    """Show a directory of this machine at the same path of a root."""
    place = root / path.relative_to("/")
    place.mkdir(parents=True, exist_ok=True)
    mount("--bind", str(path), str(place))
    if read_only:
        mount("-o", "remount,bind,ro", str(place))


def mount(*words: str) -> None:
    """Mount something, in this process's own mount namespace."""
    subprocess.run(["mount", *words], check=True)  # noqa: S607


def use(stage: Stage) -> None:
    """Start the image's command three times, and check what the Containerfile promises."""
    own_network()
    health = json.loads(stage.settings["HEALTHCHECK"].partition("CMD ")[2])
    key = output(stage, stage.env, "agentpay-server", "keys", "generate").strip()
    given = {**stage.env, "AGENTPAY_SERVER_OPERATOR_KEY": key}
    client = {**stage.env, "AGENTPAY_API_KEY": key}
    stop = getattr(signal, stage.settings["STOPSIGNAL"])
    require(not stage.user.startswith("0:"), "the image runs as root")
    require(not passes(stage, health), "the health check passes without a server")
    for earlier in range(3):
        with started(stage, given) as process:
            wait_for(stage, health, process)
            found = output(stage, client, "agentpay", "accounts", "list", "--quiet").split()
            require(len(found) == earlier, f"{len(found)} accounts, not {earlier}, after a restart")
            output(stage, client, "agentpay", "accounts", "create", f"Account {earlier}")
            process.send_signal(stop)
            require(process.wait(30) == 0, f"exit code {process.returncode} after {stop.name}")
            print(f"start {earlier + 1}: healthy, stopped by {stop.name}", flush=True)
    outside = stage.command("touch", "/opt/agentpay/x", user=stage.user)
    written = subprocess.run(outside, env=stage.env, check=False, capture_output=True)
    require(written.returncode != 0, "the server's user may change the program")
    require(stage.inside("/data").stat().st_mode & 0o777 == 0o700, "others may read /data")


def require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - as assert has it
    """End the run with a message unless something is so."""
    if not condition:
        raise SystemExit(f"try_container.py: {otherwise}")


def output(stage: Stage, env: Mapping[str, str], *words: str) -> str:
    """Run a command of the image as its user, and return what it prints."""
    command = stage.command(*words, user=stage.user)
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def started(stage: Stage, env: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the image's command as its user."""
    words = json.loads(stage.settings["ENTRYPOINT"]) + json.loads(stage.settings["CMD"])
    command = stage.command(*words, user=stage.user)
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_for(stage: Stage, health: Sequence[str], process: "subprocess.Popen[bytes]") -> None:
    """Wait until the health check passes."""
    end = time.monotonic() + READY_SECONDS
    while not passes(stage, health):
        require(process.poll() is None, f"the server ended with exit code {process.returncode}")
        require(time.monotonic() < end, f"not healthy within {READY_SECONDS} s")
        time.sleep(0.2)


def passes(stage: Stage, health: Sequence[str]) -> bool:
    """Run the health check, as the image's user."""
    command = stage.command(*health, user=stage.user)
    return not subprocess.run(command, env=stage.env, check=False, capture_output=True).returncode


def own_network() -> None:
    """Move this process into a new network with only a loopback interface, so that no port is taken."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket() as any_socket:
        up_and_running = 0x41
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", up_and_running))  # SIOCSIFFLAGS


def check_syntax() -> None:
    """Check the syntax of every instruction, if npm is installed."""
    if shutil.which("npx") is None:
        print("npm is not installed: the syntax is not checked", flush=True)
        return
    subprocess.run(["npx", "--yes", CHECKER, "lint", str(CONTAINERFILE)], check=True)  # noqa: S607


def main() -> None:
    """Check the syntax, build the image, and use it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SystemExit("try_container.py needs Linux and root")
    if len(sys.argv) > 1:
        passed = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_CERT"))}
        use(build(Path(sys.argv[1]), passed))
        print("The image builds, is healthy, stops, and keeps its data.")
        return
    check_syntax()
    # The mounts are in the inner process's namespace and end with it. Here the stages are plain directories:
    # deleting them cannot reach what was mounted.
    with tempfile.TemporaryDirectory() as scratch:
        again = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, scratch]
        code = subprocess.run(again, check=False).returncode
    raise SystemExit(code)


if __name__ == "__main__":
    main()

"""Several hosts on one machine: network namespaces on a switch, with cables that can be cut.

Needs root and iproute2. A cable is slowed by a token bucket (``tc ... tbf``), which every kernel
with traffic control has; delays (``netem``) are a module of their own, which many have not.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SUBNET = "10.213.77."


def missing() -> str:
    """Why there can be no hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "network namespaces need iproute2 (ip and tc)"
    name = f"dx{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"this system makes no network namespaces: {made.stderr.strip()}"
    _run("ip", "netns", "delete", name)
    return ""


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Hosts:
    """Hosts by name, each with an address and a cable to a switch."""

    def __init__(self, names: Sequence[str]) -> None:
        self.prefix = f"dx{os.getpid()}-"
        self.addresses = {name: f"{SUBNET}{n}" for n, name in enumerate(names, 1)}
        self.processes: list[subprocess.Popen[bytes]] = []

    def build(self) -> None:
        """Make them, with a switch in a namespace of its own."""
        for name in ("switch", *self.addresses):
            _run("ip", "netns", "add", self.prefix + name)
            self.inside(name, "ip", "link", "set", "lo", "up")
        self.inside("switch", "ip", "link", "add", "bridge", "type", "bridge")
        self.inside("switch", "ip", "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            there = ("peer", "name", "cable", "netns", self.prefix + name)
            self.inside("switch", "ip", "link", "add", name, "type", "veth", *there)
            self.inside("switch", "ip", "link", "set", name, "master", "bridge", "up")
            self.inside(name, "ip", "address", "add", f"{address}/24", "dev", "cable")
            self.inside(name, "ip", "link", "set", "cable", "up")

    def inside(self, name: str, *words: str) -> None:
        """Run a command on a host, or on the switch."""
        _run("ip", "netns", "exec", self.prefix + name, *words)

    def start(self, name: str, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a Python process on a host; it is killed in the end."""
        command = ["ip", "netns", "exec", self.prefix + name, sys.executable, *words]
        with log.open("wb") as out:
            self.processes.append(subprocess.Popen(command, stdout=out, stderr=out))
        return self.processes[-1]

    def slow_down(self, name: str, rate: str) -> None:
        """Limit what goes to and from a host."""
        bucket = ("root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms")
        self.inside("switch", "tc", "qdisc", "add", "dev", name, *bucket)
        self.inside(name, "tc", "qdisc", "add", "dev", "cable", *bucket)

    def cut(self, name: str) -> None:
        """Cut a host's cable: nothing arrives any more, and nobody is told."""
        self.inside("switch", "ip", "link", "set", name, "nomaster")

    def mend(self, name: str) -> None:
        """Plug a host in again."""
        self.inside("switch", "ip", "link", "set", name, "master", "bridge")

    def tear_down(self) -> None:
        """Kill what was started, and remove the hosts."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(30)
        for name in ("switch", *self.addresses):
            subprocess.run(["ip", "netns", "delete", self.prefix + name], capture_output=True)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Hosts with these names, until the end of the block."""
    made = Hosts(names)
    try:
        made.build()
        yield made
    finally:
        made.tear_down()

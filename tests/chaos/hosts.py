"""hosts: two hosts that are network namespaces joined by a bridge, each with a host name, an IPC namespace and a /dev/shm of
its own that lasts, and a remote shell to them. Only in a lab of our own: all of it goes with that.
"""
import os
import re
import signal
import subprocess
import time

import lab

NET = "10.79.0."


def ip(*words):
    return subprocess.run(["ip"] + list(words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


class Hosts:
    def __init__(self, folder):
        self.folder, self.holders = folder, []
        self.why = "" if os.environ.get("TUTTI_LAB") == "1" else "needs root"
        if self.why:
            return
        for words in (("link", "add", "br0", "type", "bridge"), ("addr", "add", NET + "254/24", "dev", "br0"),
                      ("link", "set", "br0", "up")):
            self.why = self.why or ip(*words).stderr.strip()
        for i in (1, 2):
            self.why = self.why or self.make(i)
        self.rsh = os.path.join(folder, "on")
        with open(self.rsh, "w") as f:
            f.write('#!/bin/bash\nwhile [[ "$1" == -* ]]; do case "$1" in -l|-p|-o) shift 2 ;; *) shift ;; esac; done\nh=${1##*.}\nshift\n'
                    'pids=(0 %s)\nexec nsenter -t ${pids[$h]} -m -u -i -n /bin/bash -c "cd %s; $*"\n' % (
                        " ".join(str(p.pid) for p in self.holders), folder))
        os.chmod(self.rsh, 0o755)

    def make(self, i):
        name = "host%d" % i
        for words in (("netns", "add", name), ("link", "add", "v%d" % i, "type", "veth", "peer", "name", "eth0", "netns", name),
                      ("link", "set", "v%d" % i, "master", "br0", "up"), ("-n", name, "addr", "add", NET + "%d/24" % i, "dev", "eth0"),
                      ("-n", name, "link", "set", "eth0", "up"), ("-n", name, "link", "set", "lo", "up")):
            out = ip(*words)
            if out.returncode:
                return out.stderr.strip()
        # It keeps the namespaces, and so what is in /dev/shm, between two worlds.
        self.holders.append(subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "-u", "-i", "-m", "bash", "-c",
             "hostname %s; mount -t tmpfs shm /dev/shm; touch %s/%s.up; exec sleep infinity" % (name, self.folder, name)]))
        until = time.monotonic() + 5
        while not os.path.exists(os.path.join(self.folder, name + ".up")) and time.monotonic() < until:
            time.sleep(0.01)
        return ""

    def enter(self, i):
        return ["nsenter", "-t", str(self.holders[i - 1].pid), "-m", "-u", "-i", "-n"]

    def link(self, i, up):
        ip("link", "set", "v%d" % i, "up" if up else "down")

    def inside(self, i):
        """The processes of a host, but for the one that holds it."""
        own = os.readlink("/proc/%d/ns/uts" % self.holders[i - 1].pid)
        found = []
        for p in lab.processes().values():
            try:
                if os.readlink("/proc/%d/ns/uts" % p.pid) == own and p.pid != self.holders[i - 1].pid:
                    found.append(p)
            except OSError:
                pass
        return found

    def left(self):
        found = []
        for i in (1, 2):
            found += ["process %d (%s) of host%d" % (p.pid, p.comm, i) for p in self.inside(i)]
            shm = "/proc/%d/root/dev/shm" % self.holders[i - 1].pid
            # Data in common goes with the next run that comes to a host; Open MPI leaves a segment of each killed rank.
            found += ["%s of host%d" % (name, i) for name in os.listdir(shm)
                      if not name.startswith("vader_segment") and not re.fullmatch(r"tutti-\d+-[0-9a-f]{16}", name)]
        return found

    def close(self):
        for h in self.holders:
            h.send_signal(signal.SIGKILL)
            h.wait()
        for i in (1, 2):
            ip("netns", "del", "host%d" % i)
        ip("link", "del", "br0")

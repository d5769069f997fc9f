"""Several nodes of a Ray cluster on this machine, some of which can be killed.

They live in a process of their own, which listens on 127.0.0.1 alone, with a token. Every node has
its own raylet, object store and workers, but they share the machine.
"""

import os
import secrets
import subprocess
import sys
import tempfile
from typing import Any, Self

import psutil

# What docs/cluster.md sets before `ray start`. Ray gives a node up after five failed checks. By
# default each waits ten seconds for an answer: a machine without power is noticed after 50 seconds.
HEALTH_CHECK = {"RAY_health_check_period_ms": "100", "RAY_health_check_timeout_ms": "500"}


class SimulatedCluster:
    """A head without players, and nodes with some; they are there while the ``with`` lasts.

    Args:
        cpus: of each node, so many players.
    """

    def __init__(self, *cpus: int) -> None:
        self.cpus = cpus
        # For whoever joins, too: 127.0.0.1 has no nodes elsewhere, see lib.players.cluster.
        self.environment = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN", secrets.token_hex(32)),
        }

    def __enter__(self) -> Self:
        from benchmarks.processes import started  # late: what is started is this file, by itself

        self._started = started(
            [sys.executable, __file__, *map(str, self.cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | self.environment | HEALTH_CHECK,
        )
        self._process = self._started.__enter__()
        self.address = self._answer()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._started.__exit__(*exception)

    def kill(self, node: int) -> None:
        """Kill the raylet of a node, and with it all that it started; others see that at once."""
        self._answer(f"kill {node}")

    def silence(self, node: int) -> None:
        """Stop a node's processes, so that it does not answer any more, as after a power cut."""
        self._answer(f"silence {node}")

    def add(self, cpus: int) -> None:
        """Add a node."""
        self._answer(f"add {cpus}")

    def _answer(self, command: str = "") -> str:
        if command:
            print(command, file=self._process.stdin, flush=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("done"):
                return line.removeprefix("done").strip()
        raise RuntimeError("the simulated cluster ended")


def serve(cpus: list[int]) -> None:
    """What the process runs: answers to what is read, until there is no more."""
    short = "/tmp"  # so that the paths of sockets are
    with tempfile.TemporaryDirectory("", "ray-", short, ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # before Ray is imported
        from ray.cluster_utils import Cluster

        where = {"node_ip_address": "127.0.0.1"}
        cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **where})
        nodes = [cluster.add_node(num_cpus=count, **where) for count in cpus]
        silent: list[psutil.Process] = []
        print("done", cluster.address, flush=True)
        for line in sys.stdin:
            command, number = line.split()
            if command == "kill":
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
            elif command == "silence":
                raylet = psutil.Process(nodes[int(number)].all_processes["raylet"][0].process.pid)
                for process in (raylet, *raylet.children(recursive=True)):
                    process.suspend()
                    silent.append(process)
            else:
                nodes.append(cluster.add_node(num_cpus=int(number), **where))
            print("done", flush=True)
        for process in silent:
            process.kill()
        cluster.shutdown()


if __name__ == "__main__":
    serve([int(count) for count in sys.argv[1:]])

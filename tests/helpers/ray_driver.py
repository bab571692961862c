"""`python ray_driver.py PLAN`: drive a run of integer workers on a Ray cluster.

PLAN is JSON: {"address": of the cluster, "run": arguments of wbsp.ray.run, "worker": most of the
workers' `Plan`, "die": {worker: step} at which a worker kills itself (kill -9), once}. Prints
RESULT and JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import integer_worker
import ray

import wbsp.ray
from wbsp.environment import Task


def train(config: dict) -> dict:
    """Run one integer worker from the environment; return its index and its node."""
    address, worker = Task.complete(None, None)
    folder = Path(config["worker"]["record"])
    mark = folder / f"died-{worker}"
    die_at = None if mark.exists() else config["die"].get(str(worker))
    if die_at:
        mark.touch()  # it dies once
    (folder / f"pid-{worker}").write_text(str(os.getpid()))
    plan = integer_worker.Plan(address, worker, die_at=die_at, all_lives=True,
                               token_file=os.environ["WBSP_TOKEN_FILE"], **config["worker"])
    integer_worker.work(plan)
    return {"worker": worker, "pid": os.getpid(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}


def main(plan: dict) -> int:
    ray.init(address=plan["address"])
    try:
        result = wbsp.ray.run(train, config={"worker": plan["worker"], "die": plan.get("die", {})},
                              **plan["run"])
    except (ValueError, wbsp.ray.RunError) as error:
        print(f"driver: {error}", flush=True)
        return 1
    print("RESULT", json.dumps(dataclasses.asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

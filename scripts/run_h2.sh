#!/usr/bin/env bash
# The published experiment H2: CIFAR-10, two workers, worker 1 sleeps 1.0 s before each step.
#     scripts/run_h2.sh [SYNC] [SERVER FLAGS]      for instance: scripts/run_h2.sh pcc --seed=1
source "$(dirname "$0")/common.sh"
published H2 "$@"

#!/usr/bin/env bash
# The published experiment H1: CIFAR-10, two workers, worker 1 sleeps 0.5 s before each step.
#     scripts/run_h1.sh [SYNC] [SERVER FLAGS]      for instance: scripts/run_h1.sh pcc --seed=1
source "$(dirname "$0")/common.sh"
published H1 "$@"

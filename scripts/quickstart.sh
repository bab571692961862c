#!/usr/bin/env bash
# From a fresh clone to a trained model and its figures: a server, a fast and a slow worker, under
# optimized WBSP, on a data set that is drawn by code. Needs no GPU.
#
# Who trains how much depends on the machine's load. Momentum gets far beyond 0.90 in these steps in
# any case, and a lower rate for the last fifth, by the steps of both, leaves no swing at the end.
source "$(dirname "$0")/common.sh"

[ $# -eq 0 ] || fail "unknown argument '$1'; this script takes none"
install

base=quickstart/$(date +%Y%m%d-%H%M%S)/pcc
run=runs/$base/run-001
echo "training; the log of worker i is runs/$base/worker-i.log"
begin=$SECONDS
CUDA_VISIBLE_DEVICES='' train "$base" --sleep_time=0.1 \
    --heterogeneity=none --model=small --dataset=shapes10 --epochs=8 --check_period=2 \
    --optimizer=nesterov --lr=0.02 --lr_steps=mean --lr_decays=250:0.2
echo "training took $((SECONDS - begin)) s"

"$python" -m wbsp.figures "$run" --out="$run/figures"
"$python" - "$run/summary.json" <<'END'
import json, sys

accuracy = json.load(open(sys.argv[1]))["accuracy"]
print(f"test accuracy {accuracy:.4f}")
sys.exit(accuracy < 0.9 and "this is below 0.90: something is wrong")
END
echo "the run's files, the model (model.keras) and the figures are in $run"

#!/usr/bin/env bash
# A comparison on two nodes of eight ranks. Run it on every node at about the same time, with its number:
#     MASTER_ADDR=node0 NODE_RANK=0 bash torchrun.sh compare resnet50 --modes ddp,auto
# Rank 0 writes the record on the first node. Set variables such as NCCL_IB_HCA alike on all nodes.
set -euo pipefail
NODES="${NODES:-2}"
RANKS="${RANKS:-8}" # a node: one a GPU
PYTHON="${PYTHON:-python3}"
NODE_RANK="${NODE_RANK:?the number of this node, from 0}"
MASTER_ADDR="${MASTER_ADDR:?the address of node 0, as every node reaches it}"
exec "$PYTHON" -m torch.distributed.run --nnodes "$NODES" --nproc-per-node "$RANKS" --node-rank "$NODE_RANK" \
    --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" -m xbench "$@" --fabric cluster

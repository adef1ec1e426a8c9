#!/usr/bin/env bash
#SBATCH --job-name=xbench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=1:00:00
#SBATCH --output=xbench-%j.log
# A comparison on two nodes of eight GPUs: the tasks of one srun are the ranks. Submit it with its words:
#     sbatch slurm.sh compare resnet50 --modes ddp,auto
# It takes the environment of the shell that submits it, as sbatch does.
set -euo pipefail
PYTHON="${PYTHON:-python3}"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${hosts[0]}"
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun --kill-on-bad-exit=1 "$PYTHON" -m xbench "$@" --fabric cluster

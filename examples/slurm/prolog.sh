#!/bin/bash
# slurmd's prolog: a node whose devices fail their test gets no job, and is drained with the reason. It runs as root.
#
#   slurm.conf:  Prolog=/etc/slurm/holdfast-prolog.sh  PrologFlags=Alloc  SchedulerParameters=nohold_on_prolog_fail
#                PrologEpilogTimeout=180
#
# Without nohold_on_prolog_fail the job that met such a node is held. A test that cannot be made (no driver, no torch, a
# broken installation) stops nothing: the job's own preflight comes after it. Only a verdict drains, for otherwise one bad
# installation would drain every node. Where nodes are shared, only the job's own GPUs are tested.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
holdfast=/opt/holdfast/bin/holdfast
within=100

[ -z "$SLURM_JOB_GPUS" ] || export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="$SLURM_JOB_GPUS"
told=$(timeout --kill-after=5 "$within" "$holdfast" probe --level light 2> /dev/null)
if [ $? -eq 1 ] && verdict=$(tail -n 1 <<< "$told" | grep "^Failed in "); then
  scontrol update nodename="$SLURMD_NODENAME" state=drain reason="holdfast: probe before job $SLURM_JOB_ID: ${verdict:0:150}"
  exit 1
fi
exit 0

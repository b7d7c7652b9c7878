#!/bin/bash
# slurmd's prolog: a node whose devices fail their test gets no job, and is drained with the reason. It runs as root.
#
#   slurm.conf:  Prolog=/etc/slurm/holdfast-prolog.sh  PrologFlags=Alloc  SchedulerParameters=nohold_on_prolog_fail
#
# Without nohold_on_prolog_fail the job that met such a node is held. A test that cannot be made (no driver, no torch)
# stops nothing: the job's own preflight comes after it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
holdfast=/opt/holdfast/bin/holdfast
within=100

told=$(timeout "$within" "$holdfast" probe --level light 2>&1)
if [ $? -eq 1 ]; then
  reason="holdfast: probe before job $SLURM_JOB_ID: $(tail -n 1 <<< "$told" | cut -c -150)"
  scontrol update nodename="$SLURMD_NODENAME" state=drain reason="$reason"
  exit 1
fi
exit 0

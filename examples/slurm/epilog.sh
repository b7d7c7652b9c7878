#!/bin/bash
# slurmd's epilog: what a job left on the node is cleared, and a node that Holdfast proved bad is drained. As root.
#
#   slurm.conf:  Epilog=/etc/slurm/holdfast-epilog.sh
#
# A job whose user may not drain nodes leaves an order here. It is read as that user, so that it can be a link to
# nothing which they could not read anyway; and it is about this node alone.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
order=/tmp/holdfast-drain.$SLURM_JOB_ID.$SLURMD_NODENAME
as_user=(setpriv --reuid "$SLURM_JOB_UID" --clear-groups)

reason=$("${as_user[@]}" head -c 200 "$order" 2> /dev/null | tr -cd '[:print:]')
if [ -n "$reason" ]; then
  scontrol update nodename="$SLURMD_NODENAME" state=drain reason="$reason"
  "${as_user[@]}" rm -f "$order"
fi

# Processes of the job that outlived its steps. Only tasks have SLURM_TASK_PID: neither slurmd nor this script.
left=$(grep -lszx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ)
left=$(grep -lszx "SLURMD_NODENAME=$SLURMD_NODENAME" /dev/null $left)
for each in $(grep -lsz "^SLURM_TASK_PID=" /dev/null $left); do
  process=${each#/proc/}
  kill -KILL "${process%/environ}" 2> /dev/null
done

# Snapshots in memory of launchers that were killed: nobody holds their lock any more.
for folder in /dev/shm/holdfast-"$SLURM_JOB_UID"-*; do
  [ -d "$folder" ] && "${as_user[@]}" flock --nonblock "$folder/launcher.lock" rm -rf "$folder"
done
exit 0

#!/bin/bash
# slurmd's epilog: what a job left on the node is cleared, and a node that Holdfast proved bad is drained. As root.
#
#   slurm.conf:  Epilog=/etc/slurm/holdfast-epilog.sh
#
# Whatever a user could have prepared (files, links, pipes that nobody writes, processes) is touched as that user, without
# root's groups, and for so long only: an epilog that hangs keeps the node from everybody.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
group=$(id -g "$SLURM_JOB_UID") || exit 0
as_user() { timeout --kill-after=1 "$1" setpriv --reuid "$SLURM_JOB_UID" --regid "$group" --clear-groups "${@:2}"; }

# Processes of the job that outlived its steps. Only tasks have SLURM_TASK_PID: neither slurmd nor this script.
left=$(grep -lszx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ)
left=$(grep -lszx "SLURMD_NODENAME=$SLURMD_NODENAME" /dev/null $left)
left=$(grep -lsz "^SLURM_TASK_PID=" /dev/null $left | cut -d / -f 3)
[ -z "$left" ] || as_user 5 sh -c 'kill -KILL "$@"' sh $left 2> /dev/null

# A job whose user may not drain nodes leaves an order here. It counts when it is that user's own file, is about this
# node alone, and is no way to read what they could not read anyway.
order=/tmp/holdfast-drain.$SLURM_JOB_ID.$SLURMD_NODENAME
read_own='[ -f "$0" ] && [ -O "$0" ] && [ ! -L "$0" ] && head -c 200 "$0" && rm -f "$0"'
reason=$(as_user 5 sh -c "$read_own" "$order" 2> /dev/null | tr -cd '[:print:]')
[ -z "$reason" ] || scontrol update nodename="$SLURMD_NODENAME" state=drain reason="$reason"

# Snapshots in memory of launchers that were killed: nobody holds their lock any more.
for folder in /dev/shm/holdfast-"$SLURM_JOB_UID"-*; do
  [ -d "$folder" ] && as_user 60 flock --nonblock "$folder/launcher.lock" rm -rf "$folder"
done
exit 0

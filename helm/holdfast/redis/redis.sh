#!/bin/sh
# The Redis of this pod: the primary when this pod's Sentinel says so, else a replica of the one it names.
set -eu
. /etc/redis/conf/found.sh

others_have_data() {
  for host in $HOSTS; do
    if [ "$host" != "$me" ] && answer_of "$host" DBSIZE | grep -q '^[1-9]'; then
      return 0
    fi
  done
  return 1
}

primary=""
while [ -z "$primary" ]; do
  primary="$(primary_by 127.0.0.1)"
  [ -n "$primary" ] || sleep 1
done
# An empty primary would make its replicas forget as well. Not started, it is missed, and one of them follows it.
while [ "$primary" = "$me" ] && [ ! -e /data/appendonlydir ] && others_have_data; do
  echo "this pod is named primary and has no data; waiting until another one is"
  sleep 1
  primary="$(primary_by 127.0.0.1)"
done
if [ "$primary" = "$me" ]; then
  exec redis-server /etc/redis/conf/redis.conf --replica-announce-ip "$me"
fi
exec redis-server /etc/redis/conf/redis.conf --replica-announce-ip "$me" --replicaof "$primary" 6379

#!/bin/sh
# Before this pod is stopped in good order: another one becomes primary, if there is one.
set -eu
. /etc/redis/conf/found.sh

is_primary() { answer_of 127.0.0.1 ROLE | grep -q '^master'; }

is_primary || exit 0
for host in $HOSTS; do
  if [ "$host" != "$me" ] && timeout 2 redis-cli -h "$host" -p 26379 SENTINEL FAILOVER holdfast 2>/dev/null | grep -q OK; then
    tries=0
    while is_primary && [ "$tries" -lt 10 ]; do
      tries=$((tries + 1))
      sleep 1
    done
    exit 0
  fi
done

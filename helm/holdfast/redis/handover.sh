#!/bin/sh
# Before this pod is stopped in good order: another one becomes primary, if there is one.
set -eu
. /etc/redis/conf/found.sh

is_primary() { answer_of 127.0.0.1 ROLE | grep -q '^master'; }

# Whether every replica holds all that was written here.
is_in_step() {
  said="$(answer_of 127.0.0.1 INFO replication | tr -d '\r')"
  written="$(printf '%s\n' "$said" | sed -n 's/^master_repl_offset://p')"
  ! printf '%s\n' "$said" | grep '^slave[0-9]*:.*state=online' | grep -qv "offset=$written,"
}

# At most $2 times, with pauses: until $1.
await() {
  tries=0
  until "$1" || [ "$tries" -ge "$2" ]; do
    tries=$((tries + 1))
    sleep 0.2
  done
}

is_replica() { ! is_primary; }

is_primary || exit 0
# Writes wait while this goes on, and are refused here once it is over. A Sentinel may take either replica, and one of
# them would not have what only the other one has acknowledged. Redis before 6.2 cannot do this.
answer_of 127.0.0.1 CLIENT PAUSE 20000 WRITE > /dev/null
await is_in_step 10
for host in $HOSTS; do
  if [ "$host" != "$me" ] && timeout 2 redis-cli -h "$host" -p 26379 SENTINEL FAILOVER holdfast 2>/dev/null | grep -q OK; then
    await is_replica 50
    break
  fi
done
answer_of 127.0.0.1 CLIENT UNPAUSE > /dev/null

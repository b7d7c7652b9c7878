#!/bin/sh
# The Sentinel of this pod. It begins with what the others know, else with what it knew, else with the first pod.
set -eu
. /etc/redis/conf/found.sh
settings=/data/sentinel.conf

primary=""
for host in $HOSTS; do
  if [ -z "$primary" ] && [ "$host" != "$me" ]; then
    primary="$(primary_by "$host")"
  fi
done
if [ -z "$primary" ] && [ -f "$settings" ]; then
  primary="$(sed -n 's/^sentinel monitor holdfast \([^ ]*\) .*/\1/p' "$settings")"
fi
if [ -z "$primary" ]; then
  primary="${HOSTS%% *}"
fi

# A Sentinel ends at once when it cannot look a name up, and a pod's name is there a moment after the pod.
tries=0
until [ "$tries" -ge 30 ]; do
  case "$(timeout 2 redis-cli -h "$primary" -p 6379 PING 2>&1 || true)" in
    *PONG* | *LOADING* | *efused* | *route* | "") break ;;
  esac
  tries=$((tries + 1))
  sleep 1
done

# Named after its pod, so that a pod on an empty volume is still one of three and not a fourth.
identity="$(printf %s "$me" | sha1sum | cut -c 1-40)"
umask 077
cat > "$settings" <<END
port 26379
dir /tmp
sentinel myid $identity
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $me
requirepass $REDISCLI_AUTH
sentinel sentinel-pass $REDISCLI_AUTH
sentinel monitor holdfast $primary 6379 2
sentinel auth-pass holdfast $REDISCLI_AUTH
sentinel down-after-milliseconds holdfast 3000
sentinel failover-timeout holdfast 10000
sentinel parallel-syncs holdfast 2
END
exec redis-server "$settings" --sentinel

# What a pod of this Redis knows of the others. Read by the scripts beside it.
# HOSTS: the names of all pods; DOMAIN: what they end in. The password is in REDISCLI_AUTH.
me="$HOSTNAME.$DOMAIN"

# The name of the primary as the Sentinel at $1 knows it; nothing when nobody answers.
primary_by() {
  timeout 2 redis-cli -h "$1" -p 26379 --raw SENTINEL GET-MASTER-ADDR-BY-NAME holdfast 2>/dev/null |
    grep -F ".$DOMAIN" || true
}

# What a Redis says to one command; nothing when nobody answers.
answer_of() {
  host="$1"
  shift
  timeout 2 redis-cli -h "$host" -p 6379 --raw "$@" 2>/dev/null || true
}

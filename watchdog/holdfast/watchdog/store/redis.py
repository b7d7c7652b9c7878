"""The cluster's store and its lock: one Redis for all replicas of the watchdog.

    key                                  type    written by      TTL   holds
    holdfast:{watchdog}:schema           string  claim, lease    -     the version of these keys
    holdfast:{watchdog}:fence            string  claim, lease    -     the last token given
    holdfast:{watchdog}:writes           string  every write     -     the newest write's number under the fence
    holdfast:{watchdog}:lock             string  lease           yes   who leads
    holdfast:{watchdog}:jobs             set     append, forget  -     the names of jobs with a journal
    holdfast:{watchdog}:journal:JOB      list    append, save,   -     Journaled as msgpack, without the lines that
                                                 forget                are gone: line N at index N-1-gone
    holdfast:{watchdog}:extent:JOB       hash    append, save,   -     gone, bytes, at (of what is gone); snapshot,
                                                 forget                earlier: the lines that those two are of
    holdfast:{watchdog}:snapshot:JOB     string  save, forget    -     Snapshot as msgpack
    holdfast:{watchdog}:earlier:JOB      string  save, forget    -     the one before it
    holdfast:{watchdog}:incidents:JOB    hash    file, forget    -     id -> Incident as msgpack
    holdfast:{watchdog}:order:JOB        zset    file, forget    -     id scored with detected_at
    holdfast:{watchdog}:answers:JOB      hash    answer, forget  -     id -> InterventionOutcome as msgpack

Keys are of version 1 until a journal is compacted, and of version 2 from then on: a program that knows of no gone
lines must not count places in that list.

The tag in braces puts all of them into one slot of a Redis cluster, so that a script may touch any of them.

Every write is one script that begins with `ENTITLED`. Outcomes beyond those each script lists:

    fenced   another watchdog has claimed; nothing was written
    older    the store knows no fence as great as ours: it is an older copy of itself. Nothing was written but the
             fence, which is beyond ours now, so that none is given twice
    late     a newer write of ours has overtaken this one (it was held up on the way, and we gave it up long ago);
             nothing was written

An append whose answer was lost may have been written or not. Only the owner of the fence writes, and it knows
which of its lines were confirmed: what is behind them, under its own fence, is what got no answer. The next
append finds those lines, takes them as written, and adds what is not among them.

`harden` waits for no disk: with `appendfsync always` every write has done so, and with `everysec` a wait would
hold the event loop for up to a second. Where there are replicas, it waits until one of them holds what was
written, and so does whoever takes the lock, for no fence may be given twice. What a Redis loses with its machine
is written again; see RecentLines.
Source: https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/
"""

import logging
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, Fenced, Malformed, Unavailable
from holdfast.api.event import Event, Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.store import BOUND, PAGE_LINES, Bound, Extent, Fence, Snapshot, placed

# Minutes of a busy watchdog, at about 200 bytes each.
LINES_MAX = 65_536

logger = logging.getLogger(__name__)

T = TypeVar("T")
LINES = msgspec.msgpack.Decoder(Journaled)
SNAPSHOTS = msgspec.msgpack.Decoder(Snapshot)
INCIDENTS = msgspec.msgpack.Decoder(Incident)
ANSWERS = msgspec.msgpack.Decoder(InterventionOutcome)
encode = msgspec.msgpack.encode

WHOLE_VERSION, COMPACTED_VERSION = 1, 2  # of the keys
PREFIX = "holdfast:{watchdog}:"
SCHEMA, FENCE, WRITES, LOCK, JOBS = (PREFIX + name for name in ("schema", "fence", "writes", "lock", "jobs"))
# Appends that were held up may come between a look and a write, one for each that was given up.
DOUBT_TRIES = 8

# KEYS: schema, fence, … ARGV: versions that are understood: of new keys, of compacted ones, …
# Outcomes, nothing was written: {'schema', VERSION}: the keys are of another version | {'lost', KEY}: one of those
# that every life has is not there, and the other one is.
UNDERSTOOD = """
local version = redis.call('GET', KEYS[1])
if version and version ~= ARGV[1] and version ~= ARGV[2] then return {'schema', version} end
local known = redis.call('EXISTS', KEYS[2]) == 1
if version and not known then return {'lost', KEYS[2]} end
if known and not version then return {'lost', KEYS[1]} end
"""

# KEYS: schema, fence, writes. ARGV: as in UNDERSTOOD.
# Outcomes: the new token (integer) | as in UNDERSTOOD.
CLAIM = (
    UNDERSTOOD
    + """
if not version then redis.call('SET', KEYS[1], ARGV[1]) end
redis.call('SET', KEYS[3], '0')
return redis.call('INCR', KEYS[2])
"""
)

# KEYS: fence, … ARGV: token, …
OURS = """
local given = redis.call('GET', KEYS[1])
if given and tonumber(given) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], string.format('%.0f', tonumber(ARGV[1]) + 1))
  return 'older'
end
if given ~= ARGV[1] then return 'fenced' end
"""

# KEYS: fence, writes, … ARGV: token, number of this write, …
ENTITLED = (
    OURS
    + """
if tonumber(ARGV[2]) <= tonumber(redis.call('GET', KEYS[2]) or '0') then return 'late' end
redis.call('SET', KEYS[2], ARGV[2])
"""
)

# The writes. `ENTITLED` goes before each of them.

# KEYS: …, journal, jobs, extent. ARGV: …, after, job, line, line, …
# Outcomes: 'done': all lines are behind `after` | LENGTH (integer): the journal ends there, nothing was written.
# Lines are pushed in parts, because Lua's stack holds 8000 values.
APPEND = """
local length = redis.call('LLEN', KEYS[3]) + tonumber(redis.call('HGET', KEYS[5], 'gone') or '0')
if length ~= tonumber(ARGV[3]) then return length end
local bytes = 0
for first = 5, #ARGV, 4096 do
  redis.call('RPUSH', KEYS[3], unpack(ARGV, first, math.min(first + 4095, #ARGV)))
  redis.call('SADD', KEYS[4], ARGV[4])
end
for place = 5, #ARGV do bytes = bytes + #ARGV[place] end
if bytes > 0 then redis.call('HINCRBY', KEYS[5], 'bytes', bytes) end
return 'done'
"""

# KEYS: …, snapshot, earlier, journal, extent, schema.
# ARGV: …, body, the line it is of, its time, most lines, bytes, lines at once, version of compacted keys.
# Outcomes: 'done'. What the line was of a snapshot that an older version wrote is not known: nothing goes yet.
SAVE = """
if redis.call('EXISTS', KEYS[5]) == 0 then
  redis.call('SET', KEYS[3], ARGV[3])
  return 'done'
end
local function number(field) return tonumber(redis.call('HGET', KEYS[6], field) or '0') end
if redis.call('EXISTS', KEYS[3]) == 1 and number('snapshot') < tonumber(ARGV[4]) then
  redis.call('RENAME', KEYS[3], KEYS[4])
  redis.call('HSET', KEYS[6], 'earlier', number('snapshot'))
end
redis.call('SET', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[6], 'snapshot', ARGV[4])
local gone, bytes, lines = number('gone'), number('bytes'), redis.call('LLEN', KEYS[5])
local most, cut = math.min(number('earlier') - gone, tonumber(ARGV[8])), 0
local function over() return lines - cut > tonumber(ARGV[6]) or bytes > tonumber(ARGV[7]) end
if most < 1 or not over() then return 'done' end
local oldest = redis.call('LRANGE', KEYS[5], 0, most - 1)
while cut < #oldest and over() do
  cut = cut + 1
  bytes = bytes - #oldest[cut]
end
redis.call('LTRIM', KEYS[5], cut, -1)
redis.call('HSET', KEYS[6], 'gone', gone + cut, 'bytes', math.max(0, bytes), 'at', ARGV[5])
redis.call('SET', KEYS[7], ARGV[9])
return 'done'
"""

# KEYS: …, incidents, order. ARGV: …, id, body, detected_at. Outcomes: 'done'.
FILE = """
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[4], ARGV[5], ARGV[3])
return 'done'
"""

# KEYS: …, answers. ARGV: …, id, body. Outcomes: 'done', also when it was answered before.
ANSWER = "redis.call('HSETNX', KEYS[3], ARGV[3], ARGV[4]) return 'done'"

# KEYS: …, jobs, what there is of the job. ARGV: …, job.
# Outcomes: 'done', also when there was nothing.
FORGET = """
redis.call('SREM', KEYS[3], ARGV[3])
redis.call('DEL', unpack(KEYS, 4))
return 'done'
"""

# Outcomes: 'done'.
HARDEN = "return 'done'"

# KEYS: schema, fence, writes, lock. ARGV: as in UNDERSTOOD, our name, milliseconds.
# Outcomes: TOKEN (integer): the lock is ours, also when it was already and the answer was lost |
# 'held' by another | {'schema', VERSION} as in UNDERSTOOD.
TAKE = (
    """
local holder = redis.call('GET', KEYS[4])
if holder and holder ~= ARGV[3] then return 'held' end
"""
    + UNDERSTOOD
    + """
redis.call('SET', KEYS[4], ARGV[3], 'PX', ARGV[4])
if holder then return tonumber(redis.call('GET', KEYS[2])) end
if not version then redis.call('SET', KEYS[1], ARGV[1]) end
redis.call('SET', KEYS[3], '0')
return redis.call('INCR', KEYS[2])
"""
)

# KEYS: fence, lock. ARGV: token, our name, milliseconds.
# Outcomes: 'done': the lock is ours for that long | 'fenced' and 'older' as above.
RENEW = (
    OURS
    + """
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 'done'
"""
)

# KEYS: lock. ARGV: our name. Outcomes: 1 when it was ours, else 0.
RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class RedisStore:
    """Fills the `Store` port. Used from one thread; opens its connection with the first call."""

    def __init__(self, link: RedisLink, bound: Bound = BOUND) -> None:
        self._link = link
        self._bound = bound
        self._writes = 0
        self._recent = RecentLines()
        self._doubted: set[str] = set()  # jobs whose last append got no answer

    def claim(self) -> Fence:
        self._writes = 0
        keys = [SCHEMA, FENCE, WRITES]
        return granted(self._link, self._link.run(CLAIM, keys, [WHOLE_VERSION, COMPACTED_VERSION]))

    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(name.decode() for name in self._link.ask("SMEMBERS", JOBS)))

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        if job not in self._doubted:
            added = placed(events, at, after)
            length = self._push(job, added, after, fence)
            if length is not None:
                raise Fenced(
                    f"the journal of {job} ends at line {length}, not at {after}: somebody else writes it"
                )
            return added
        # Find out what the append before did; return its lines, if they are there, and behind them the rest.
        for _ in range(DOUBT_TRIES):
            written = tuple(self.tail(job, after))
            added = placed(unwritten(events, written), at, after + len(written))
            # With nothing to add this still asks, in one step, whether the fence and the end are what we think.
            length = self._push(job, added, after + len(written), fence)
            if length is None:
                self._doubted.discard(job)
                self._recent.keep(job, after + 1, [encode(line) for line in written])
                return written + added
            if length < after:
                break
        raise Fenced(f"the journal of {job} does not go on behind line {after}: somebody else writes it")

    def harden(self, *, fence: Fence) -> None:
        self._write(HARDEN, [], [], fence)
        self._link.hold()

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        while True:
            extent = self.extent(job)  # some lines may go while others are read
            extent.require(after, job)
            begin = after + 1 - extent.first
            bodies = self._link.ask("LRANGE", _key("journal", job), begin, begin + PAGE_LINES - 1)
            if not bodies and after == extent.first - 1 and extent.bytes:
                raise Damaged(f"{self._link}: the journal of {job} is gone")
            if not bodies:
                return
            for body in bodies:
                line = self._decode(body, LINES, f"line {after + 1} of the journal of {job}")
                if line.offset != after + 1:
                    raise Damaged(f"{self._link}: line {after + 1} of the journal of {job} is missing")
                yield line
                after = line.offset

    def last(self, job: str) -> int:
        return self.extent(job).first - 1 + int(self._link.ask("LLEN", _key("journal", job)))

    def extent(self, job: str) -> Extent:
        gone, size, at = self._link.ask("HMGET", _key("extent", job), "gone", "bytes", "at")
        return Extent(int(gone or 0) + 1, int(size or 0), None if at is None else float(at))

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        keys = [_key("snapshot", job), _key("earlier", job), _key("journal", job), _key("extent", job), SCHEMA]
        most = (self._bound.lines, self._bound.bytes, self._bound.at_once)
        values = [encode(snapshot), snapshot.offset, snapshot.at, *most, COMPACTED_VERSION]
        self._write(SAVE, keys, values, fence)

    def load(self, job: str) -> Snapshot | None:
        body = self._link.ask("GET", _key("snapshot", job))
        return None if body is None else self._decode(body, SNAPSHOTS, f"the snapshot of {job}")

    def earlier(self, job: str) -> Snapshot | None:
        body = self._link.ask("GET", _key("earlier", job))
        return None if body is None else self._decode(body, SNAPSHOTS, f"the earlier snapshot of {job}")

    def file(self, incident: Incident, *, fence: Fence) -> None:
        keys = [_key("incidents", incident.job), _key("order", incident.job)]
        self._write(FILE, keys, [incident.id, encode(incident), incident.detected_at], fence)

    def incidents(self, job: str, *, limit: int) -> tuple[Incident, ...]:
        names = self._link.ask("ZRANGE", _key("order", job), -limit, -1) if limit > 0 else []
        bodies = self._link.ask("HMGET", _key("incidents", job), *names) if names else []
        return tuple(
            self._decode(body, INCIDENTS, f"incident {name.decode()} of {job}")
            for name, body in zip(names, bodies, strict=True)
        )

    def note_answer(self, job: str, outcome: InterventionOutcome, *, fence: Fence) -> None:
        self._write(ANSWER, [_key("answers", job)], [outcome.id, encode(outcome)], fence)

    def answer(self, job: str, id: str) -> InterventionOutcome | None:
        body = self._link.ask("HGET", _key("answers", job), id)
        return None if body is None else self._decode(body, ANSWERS, f"the answer to intervention {id} of {job}")

    def forget(self, job: str, *, fence: Fence) -> None:
        kept = ("journal", "extent", "snapshot", "earlier", "incidents", "order", "answers")
        self._write(FORGET, [JOBS, *(_key(kind, job) for kind in kept)], [job], fence)
        self._recent.forget(job)
        self._doubted.discard(job)

    def close(self) -> None:
        self._link.close()

    def _push(self, job: str, lines: Sequence[Journaled], after: int, fence: Fence) -> int | None:
        """Add lines behind `after`; where the journal ends instead, when that is not its end."""
        bodies = [encode(line) for line in lines]
        length = self._try_push(job, bodies, after, fence)
        if length is not None and length < after:
            lost = self._recent.between(job, length, after)
            if lost is None:
                return length
            logger.error("store has lost lines, writing them again job=%s from=%d to=%d", job, length + 1, after)
            length = self._try_push(job, (*lost, *bodies), length, fence)
        if length is None:
            self._recent.keep(job, after + 1, bodies)
        return length

    def _try_push(self, job: str, bodies: Sequence[bytes], after: int, fence: Fence) -> int | None:
        try:
            keys = [_key("journal", job), JOBS, _key("extent", job)]
            outcome = self._write(APPEND, keys, [after, job, *bodies], fence)
        except Unavailable:
            self._doubted.add(job)
            raise
        return outcome if isinstance(outcome, int) else None

    def _write(self, script: str, keys: list[str], values: list[Any], fence: Fence) -> bytes | int:
        self._writes += 1
        outcome: bytes | int = self._link.run(
            ENTITLED + script, [FENCE, WRITES, *keys], [fence, self._writes, *values]
        )
        require_ours(self._link, outcome)
        if outcome == b"late":
            raise Unavailable(f"{self._link}: a newer write has overtaken this one")
        return outcome

    def _decode(self, body: bytes, decoder: msgspec.msgpack.Decoder[T], what: str) -> T:
        if body is None:
            raise Damaged(f"{self._link}: {what} is missing")
        try:
            return decode(decoder, body)
        except Malformed as error:
            raise Damaged(f"{self._link}: {what} cannot be read: {error}") from error


def granted(link: RedisLink, outcome: Any) -> Fence:
    """The token that a script gave. Raises Damaged when the keys are of another version of this program, or one is
    lost: a fence would be given twice.
    """
    if isinstance(outcome, list) and outcome[0] == b"lost":
        fix = "restore this Redis from its backup, or, to begin anew on purpose, empty it (FLUSHALL)"
        raise Damaged(f"{link}: it had a life and has lost {outcome[1].decode()}: {fix}")
    if isinstance(outcome, list):
        read = f"this program reads versions {WHOLE_VERSION} and {COMPACTED_VERSION}"
        raise Damaged(f"{link}: its keys are of version {outcome[1].decode()}, {read}")
    return Fence(int(outcome))


def require_ours(link: RedisLink, outcome: Any) -> None:
    """Raises Fenced when a script found that the fence is ours no more."""
    if outcome == b"older":
        raise Fenced(f"{link} is an older copy of itself: it did not know this watchdog's fence")
    if outcome == b"fenced":
        raise Fenced("another watchdog has taken over this store")


def unwritten(events: Sequence[Event], written: Sequence[Journaled]) -> Sequence[Event]:
    """What of `events` is not at the head of them in `written` already.

    Whoever asks again asks for what it asked for before, in the same order, without what has become needless, and
    then for more. Compared as bytes: a figure that is no number does not equal itself.
    """
    rest = 0
    for line in written:
        if rest < len(events) and encode(events[rest]) == encode(line.event):
            rest += 1
    return events[rest:]


def _key(kind: str, job: str) -> str:
    return f"{PREFIX}{kind}:{job}"


# The journal's newest lines, kept by who wrote them for a while.
#
# A Redis that writes its file once a second loses the last second with its machine. Whoever wrote those lines
# still knows them, and has acted on them: it writes them again.


class RecentLines:
    """Bounded over all jobs together: the oldest go first."""

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        self._lines: deque[tuple[str, int, bytes]] = deque(maxlen=lines_max)

    def keep(self, job: str, first: int, bodies: Sequence[bytes]) -> None:
        """Remember lines as they were written; the first one is at the place `first`."""
        self._lines.extend((job, place, body) for place, body in enumerate(bodies, start=first))

    def between(self, job: str, behind: int, upto: int) -> tuple[bytes, ...] | None:
        """The job's lines behind `behind` up to `upto`, None when one of them is not known any more."""
        known = {place: body for name, place, body in self._lines if name == job and behind < place <= upto}
        if len(known) != upto - behind:
            return None
        return tuple(known[place] for place in range(behind + 1, upto + 1))

    def forget(self, job: str) -> None:
        """The job's journal begins anew."""
        self._lines = deque((line for line in self._lines if line[0] != job), maxlen=self._lines.maxlen)


# The lock over the replicas.


class RedisLease:
    """Fills the `Lease` port over the store's own connection: when Redis is away, both together wait once."""

    def __init__(self, link: RedisLink, *, identity: str, ttl_s: float) -> None:
        self._link = link
        # Two lives of one pod are two holders.
        self._name = f"{identity}/{secrets.token_hex(4)}"
        self._ttl_ms = int(ttl_s * 1000)
        self._checked = False

    def is_held(self) -> bool:
        return bool(self._link.ask("EXISTS", LOCK))

    def take(self) -> Fence | None:
        """Raises InvalidInput, too, when this Redis must not be used as it is run."""
        if not self._checked:
            for advice in self._link.check():
                logger.warning("redis is run unwisely redis=%s advice=%s", self._link, advice)
            self._checked = True
        keys = [SCHEMA, FENCE, WRITES, LOCK]
        outcome = self._link.run(TAKE, keys, [WHOLE_VERSION, COMPACTED_VERSION, self._name, self._ttl_ms])
        if outcome == b"held":
            return None
        fence = granted(self._link, outcome)
        self._link.hold()  # when it fails, whoever asks again gets the same fence: the lock is ours
        return fence

    def renew(self, fence: Fence) -> None:
        require_ours(self._link, self._link.run(RENEW, [FENCE, LOCK], [fence, self._name, self._ttl_ms]))

    def replicas(self) -> int | None:
        return self._link.replicas()

    def release(self) -> None:
        self._link.run(RELEASE, [LOCK], [self._name])

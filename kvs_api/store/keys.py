"""Names of every key in Redis. Only kvs_api uses them: it passes them to its script, which adds only listed suffixes.

"readers" and "writers" name the service on whose behalf kvs_api acts; "steps.lua" is any file of the script.

| key                      | type   | holds                                             | writers            | readers            | expiry |
|--------------------------|--------|---------------------------------------------------|--------------------|--------------------|--------|
| experiments              | zset   | experiment names by creation time                 | client             | all                | never  |
| exp:E                    | string | ExperimentRecord, JSON                            | client, once; steps.lua | all                | never  |
| exp:E:log:seq            | string | newest number: of its own event or of a cluster event numbered in it | steps.lua          | steps.lua          | never  |
| exp:E:log                | stream | events; id `seq-0`, fields `t` (ms), `e` (JSON), `c`: number of cluster log events at that time | steps.lua | all | never  |
| exp:E:log:cluster        | string | number of cluster log events numbered in it | steps.lua          | steps.lua          | never  |
| exp:E:log:runs           | hash   | run -> `seq:hash of the request`                  | steps.lua          | steps.lua          | never  |
| exp:E:log:notes          | hash   | hash of a controller's note -> seq of its newest  | steps.lua          | steps.lua          | never  |
| exp:E:log:marks          | hash   | deletion: seq of the command; by: its author; archived: `1` or empty; unreadable: Unreadable, JSON | steps.lua | steps.lua, client | never |
| exp:E:log:history        | string | number of its newest event counted in the history | steps.lua         | steps.lua          | never  |
| exp:E:log:waiting        | list   | runs that were in the queue when E was quarantined | steps.lua          | steps.lua          | until restored |
| exp:E:log:datasets       | set    | data sets that its runs use                       | steps.lua          | steps.lua          | never  |
| exp:E:log:time           | string | newest `t` (ms) of the log and the live stream    | steps.lua          | steps.lua          | never  |
| exp:E:log:segments       | list   | Segments, JSON, oldest first: parts of the log moved to files | steps.lua | all | never |
| exp:E:log:snapshots      | list   | Snapshots, JSON, newest first: folds of the log in files | steps.lua | all          | the last 2 |
| exp:E:calls               | hash   | a client's call -> seq of the event it appended   | steps.lua          | steps.lua          | last 1,000 |
| exp:E:calls:order         | list   | these calls, oldest first                         | steps.lua          | steps.lua          | last 1,000 |
| exp:E:live               | stream | LivePoints; id `seq-0`, fields `t`, `e`           | steps.lua          | client, dispatcher | never  |
| exp:E:live:seq           | string | counter of the live stream                        | steps.lua          | steps.lua          | never  |
| exp:E:task:T             | hash   | state, attempt, worker, incarnation, lease_until (store's clock), devices (`0,2`), saved_attempt, saved_batch, preempted (attempt), others (of a gang, JSON), group and group_size (of a fused group), began (store's clock; only with users) | steps.lua | steps.lua   | never  |
| exp:E:stacks:Q           | string | request for a task's stack trace: "", then `=` and the answer | client, worker | client | 5 min  |
| clock                    | string | the store's clock (ms), largest reported value | steps.lua         | all                | never  |
| deleting                 | set    | experiments to delete                             | steps.lua          | controller         | never  |
| dataset:D                | set    | experiments whose runs use the data set           | steps.lua          | steps.lua          | never  |
| reclaim                  | set    | data sets without experiments                     | steps.lua          | controller, workers | never |
| reclaim:seq              | string | counter of its changes                            | steps.lua          | controller, workers | never |
| audit                    | stream | fields `t` (ms), `b` (author), `w` (action)       | steps.lua, kvs_api | client, dispatcher | last 100,000 |
| token:ID                 | hash   | record: TokenRecord, JSON; sha: hash of its secret; used (s) | kvs_api      | kvs_api            | a month after its end |
| session:ID               | string | ended sign-in session                  | kvs_api            | kvs_api            | 8 days |
| sign-in:SHA              | string | owner of a one-time code: SignedIn, JSON          | kvs_api            | kvs_api            | 10 min |
| sign-in:SHA:used         | string | idempotency key of the call that redeemed it      | kvs_api            | kvs_api            | 10 min |
| notifications            | hash   | id of a target -> StoredTarget, JSON: its address may have a secret | kvs_api | controller | never  |
| outbox                   | string | Outbox, JSON: messages to send, cursors, results  | controller         | controller         | never  |
| quotas                   | hash   | `project:P` or `default` -> Quota, JSON           | kvs_api            | steps.lua          | never  |
| hours:A                  | hash   | day since the epoch -> device-ms used by account A | steps.lua   | steps.lua          | 31 days after its last |
| accounts                 | set    | accounts that have `hours:A` | steps.lua | steps.lua | with the hours |
| bytes                    | hash   | experiment -> `BYTES ACCOUNT`: measured bytes on volumes | steps.lua | steps.lua | with the experiment |
| bytes:accounts           | hash   | account -> sum of these                           | steps.lua          | steps.lua          | never  |
| exp:E:log:models         | hash   | run -> number of requested and added models; only with users | steps.lua | steps.lua | never |
| tokens                   | zset   | ids of tokens by creation time                    | kvs_api            | kvs_api            | never  |
| queue                    | list   | open runs, `E/run`, oldest first                  | steps.lua          | controller, client | never  |
| workers                  | set    | worker names                                      | worker             | all                | never  |
| worker:W                 | hash   | record (JSON), incarnation, reported (store's clock), free, running, leaving, usage (JSON), sampled, devices (number) | worker | all | never  |
| worker:W:open:D          | list   | tasks with an open attempt on device D, oldest first; D is `none` for tasks without a device | steps.lua | steps.lua | at registration |
| worker:W:inbox           | stream | InboxItems; id `seq-0`, fields `e`, `b`           | steps.lua          | that worker        | once read      |
| worker:W:inbox:seq       | string | counter of the inbox                              | steps.lua          | steps.lua          | at registration |
| worker:W:usage           | stream | WorkerUsage, one each 30 s: field `u` (JSON)      | steps.lua          | dispatcher         | one day |
| worker:W:recent          | list   | hashes of the latest reports' live points         | steps.lua          | steps.lua          | at registration |
| cluster_log                   | stream | the cluster log; id `seq-0`, fields `t` (ms), `e` (JSON) | steps.lua | all                | never  |
| cluster_log:segments, cluster_log:snapshots | list | as for an experiment                       | steps.lua          | all                | as there |
| cluster_log:seq               | string | counter of the cluster log                        | steps.lua          | steps.lua          | never  |
| cluster_log:time              | string | newest `t` (ms) of all logs                       | steps.lua          | steps.lua          | never  |
| cluster_log:workers           | hash   | worker -> its incarnation, "" if it left          | steps.lua | steps.lua          | never  |
| cluster                  | stream | notifications: workers came or went, or a request | steps.lua          | controller         | last 1,000 |
| cluster:seq              | string | counter of the notifications                      | steps.lua          | controller         | never  |
| cluster:size             | string | SizeRequest, JSON: the pending request            | client, controller | controller, client | once done |
| cluster:worker-set       | string | WorkerSetStatus, JSON                             | controller         | client, dispatcher | never  |
| cluster:health           | hash   | worker -> WorkerHealth, JSON: checks, quarantine  | client, controller, worker | controller, client, dispatcher | with the worker |
| cluster:health:seq       | string | counter of its changes                            | steps.lua          | kvs_api            | never  |
| cluster:health:incidents | list   | Incidents, JSON, oldest first                     | steps.lua          | client, dispatcher | last 200 |
| leader                   | hash   | holder, process, term, until (store's clock): the controller's lease; open_runs: maximum number of attended runs; attended: these runs, Attended, JSON | controller         | steps.lua          | never  |
| trial:SHA                | string | TrialRecord, JSON                                 | controller         | controller         | 90 days |
| registry                 | set    | names of registered models                        | client             | all                | never  |
| registering              | set    | `NAME/N`: versions with files to copy             | client, controller | controller         | once done |
| registry:NAME            | hash   | newest: number of the newest version; version:N: ModelVersion, JSON; alias:A: N; call:ID: version added by a client's call | client, controller | all | never |
| history:sub_epochs            | hash   | SubEpochKey -> SubEpochHistory, JSON: results of such sub-epochs over all runs | controller | controller, client | last 10,000 |
| history:sub_epochs:used       | zset   | the same keys by the number of their newest change | steps.lua         | steps.lua          | with the row |
| history:sub_epochs:seq        | string | counter of its changes                            | steps.lua          | kvs_api            | never  |
| code:SHA                 | string | CodeRecord, JSON                                  | client, once       | workers            | never  |
| archive:SHA              | string | code archive, bytes                               | client, once       | workers            | never  |
"""

# ruff: noqa: E501 - a table is read by its columns

from __future__ import annotations

from cerebro.contract import SCHEMA_VERSION

_PREFIX = f"cerebro:{SCHEMA_VERSION}:"
"""The digit is the schema version, so another schema never reads these keys."""

EXPERIMENTS = f"{_PREFIX}experiments"
QUEUE = f"{_PREFIX}queue"
WORKERS = f"{_PREFIX}workers"
CLUSTER_LOG = f"{_PREFIX}cluster_log"
CLUSTER = f"{_PREFIX}cluster"
SIZE = f"{CLUSTER}:size"
WORKER_SET = f"{CLUSTER}:worker-set"
HEALTH = f"{CLUSTER}:health"
LEADER = f"{_PREFIX}leader"
CLOCK = f"{_PREFIX}clock"
NEWS = f"{_PREFIX}news"
"""Channel (not a key) for the keys of streams with new entries."""
DELETING = f"{_PREFIX}deleting"
RECLAIM = f"{_PREFIX}reclaim"
AUDIT = f"{_PREFIX}audit"
TOKENS = f"{_PREFIX}tokens"
NOTIFICATIONS = f"{_PREFIX}notifications"
OUTBOX = f"{_PREFIX}outbox"
QUOTAS = f"{_PREFIX}quotas"
HOURS = f"{_PREFIX}hours:"
"""Prefix of account names: ``project:P`` or ``owner:O``."""
ACCOUNTS = f"{_PREFIX}accounts"
BYTES = f"{_PREFIX}bytes"
REGISTERING = f"{_PREFIX}registering"
SUB_EPOCHS = f"{_PREFIX}history:sub_epochs"
REGISTRY = f"{_PREFIX}registry"
DATASET = f"{_PREFIX}dataset:"
"""Prefix of data set names."""


def session(identity: str) -> str:
    """Key that exists if a sign-in session has ended."""
    return f"{_PREFIX}session:{identity}"


def sign_in_code(sha256: str) -> str:
    """Owner of a one-time sign-in code, by the code's hash."""
    return f"{_PREFIX}sign-in:{sha256}"


def sign_in_links(maker: str) -> str:
    """Hashes of the open sign-in codes of a maker, by time."""
    return f"{_PREFIX}sign-in-links:{maker}"


def experiment(name: str) -> str:
    """Record of an experiment; the other keys of the experiment extend it."""
    return f"{_PREFIX}exp:{name}"


def log(name: str) -> str:
    """Event log of an experiment."""
    return f"{experiment(name)}:log"


CLUSTER_LOG_NAME = ".cluster"
"""Name of the cluster log in place of an experiment's name. Experiment names cannot start with a dot."""


def log_of(name: str) -> str:
    """Log of an experiment, or the cluster log by the name `CLUSTER_LOG_NAME`."""
    return CLUSTER_LOG if name == CLUSTER_LOG_NAME else log(name)


def marks(name: str) -> str:
    """Marks of an experiment as a whole: archived, unreadable, its deletion."""
    return f"{log(name)}:marks"


def calls(name: str) -> str:
    """Results of clients' calls on an experiment."""
    return f"{experiment(name)}:calls"


def live(name: str) -> str:
    """Live points of an experiment."""
    return f"{experiment(name)}:live"


def stacks(name: str, question: str) -> str:
    """Request for a task's stack trace, and its answer."""
    return f"{experiment(name)}:stacks:{question}"


def task(name: str, key: str) -> str:
    """Lease and state of a task of an experiment."""
    return f"{experiment(name)}:task:{key}"


def worker(name: str) -> str:
    """Registration of a worker."""
    return f"{_PREFIX}worker:{name}"


def inbox(name: str) -> str:
    """Inbox of a worker."""
    return f"{worker(name)}:inbox"


def usage(name: str) -> str:
    """A worker's usage over time."""
    return f"{worker(name)}:usage"


def recent(name: str) -> str:
    """Hashes of a worker's latest live points."""
    return f"{worker(name)}:recent"


def trial(sha256: str) -> str:
    """Outcome of a trial."""
    return f"{_PREFIX}trial:{sha256}"


def token(identity: str) -> str:
    """A token of a person or program."""
    return f"{_PREFIX}token:{identity}"


def registered(name: str) -> str:
    """Versions and aliases of a registered model."""
    return f"{REGISTRY}:{name}"


def code(sha256: str) -> str:
    """Encoded user code."""
    return f"{_PREFIX}code:{sha256}"


def archive(sha256: str) -> str:
    """Code archive."""
    return f"{_PREFIX}archive:{sha256}"

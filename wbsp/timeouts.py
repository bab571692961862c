"""How long one process waits for another: all such times in seconds, in one table.

A line says: name, seconds, who waits for what, and what then. docs/reference/timeouts.md shows the
same. How often a loop looks at its timers, or a line is said, stands in the module that does it.
"""

# A worker waits for its server

CONNECT = 120.0  # server and worker: for each other at the beginning; default of connect_timeout
WORKER_PATIENCE = 600.0  # worker: for a connection to server and shards; default of patience
SERVER_SILENT = 300.0  # worker: for a message of a connected server; then the worker fails
REQUEST_STALLED = 60.0  # worker: for progress of a request; then it is sent again
WORKER_BEAT = 1.0  # worker: between two signs of life
SHARING_ENDED = 0.5  # worker without shared memory: for its connection's end; then it asks why
PRESENT_AGAIN = 2.0  # worker: for a shard's answer to its introduction; then it is repeated
SERVER_ENDED = 2.0  # worker of another fit: for a server that was ended, and may be there again
NEXT_RUN = 0.3  # worker: between two questions whether the next run has begun
FAREWELL = 5.0  # worker whose process ends after a fit: for a server to tell so; then it ends
NO_ANSWER = 2.0  # worker: for an answer at one of several addresses; then it tries the next
REFUSED = 0.25  # worker: the same where the connection was refused
HANDSHAKE = 30.0  # worker: the same where the connection was accepted (slow lines)
NOT_SERVING = 0.5  # worker: until it tries again after a process that does not serve

# A server waits for its workers

WORKER_PROBED = 1.0  # server: for a message of a worker; then it tries the connection
WORKER_GONE = 5.0  # server: for a new connection of a worker; then the worker is lost
WORKER_SILENT = 300.0  # server: for a message of a connected worker; then the worker is lost
INITIAL_STALLED = 60.0  # server: for a part of the initial model; then another worker is asked
PROGRESS = 1.0  # server: between two messages to a worker on how much of its vector has come
REATTACH = 30.0  # server that resumes, once some workers are back: for the others
LAST_PUSH = 120.0  # stopping server: for progress of a worker's last push; then it is dropped
GOODBYE = 60.0  # ending server: for progress of a worker's fetch of the final version
INTERRUPTED = 15.0  # server that was interrupted or failed: for all of the last pushes
SERVER_LINGER = 1.0  # ending server: for its last messages to leave

# A server and its shards wait for each other

SHARDS_MISSING = 600.0  # server whose run has begun: for its shards; then it ends
SHARDS_GRACE = 2.0  # server: for its shards, before it tells workers that it waits for them
SHARD_SILENT = 30.0  # server: for a message of a shard; then the shard is lost
SHARD_BEAT = 1.0  # server: between two signs of life to a shard, and two requests to follow
SHARD_START = 60.0  # server: for a shard that it has started to listen; then it ends
SHARD_EXIT = 1.0  # server: for the exit of a shard whose connection has ended
SHARDS_LAST = 600.0  # ending server: for the last version of its shards; then they are lost
SHARD_ALONE = 600.0  # shard: for a server; then it ends
SHARD_SERVER_PROBED = 2.0  # shard: for a message of its server; then it tries the connection
SHARD_SERVER_SILENT = 300.0  # shard: for a message of its connected server; then that is gone
SHARD_TELL = 1.0  # shard: between two messages on what arrives, or is malformed

# A server and its standby wait for each other

ELECTION = 5.0  # server, standby: for a message of the other; then they ask workers for votes
PROOF = 4.0  # server, standby: a refused connection proves so long that the other has ended
VOTE_AGAIN = 1.0  # server, standby: between two requests for votes
VOTE_WITHHELD = 60.0  # worker: for the server that has all that was durable; then it votes
CANDIDATE = VOTE_WITHHELD + 2.0  # server that was started again: for votes that are withheld
PRIMARY_MISSING = 600.0  # standby: for its server, or the right to serve; then it ends
STANDBY_BEAT = 0.5  # standby: between two signs of life to its server
LATER_SERVER = 30.0  # standby: for a later server that a worker knew of
SERVE_AGAIN = 10.0  # standby: until it tries again to serve, where the disk takes nothing
REFUSAL_GAP = 5.0  # standby: after a longer pause another process may have refused it
STANDBY_PROBED = 1.0  # server: for a message of its standby; then it tries the connection
STANDBY_LOST = 30.0  # server: for a message of its connected standby; then that is lost
STANDBY_BACK = 3.0  # server: for a standby that was killed to be there again
SNAPSHOT_STALLED = 120.0  # server: for a part of a snapshot to reach its standby
LOOKED_INTO = 10.0  # server: until it looks again into what was said of a later server
INQUIRE_AGAIN = 0.5  # server: between two questions to the other's address who serves there
PROBE_ATTEMPT = 2.0  # server, standby: for an attempt to connect to the other's address
PROBE_AGAIN = 0.5  # server, standby: between two such attempts

# A run's epochs are validated

EPOCH_WHOLE = 0.5  # worker that validates: for the rest of its epoch; else it takes the one before
EPOCH_VERSION = 30.0  # worker: for an epoch's version; then it goes on without
OTHERS_BACK = 3.0  # server at the end of a run: for its standby and readers of the run before
READ_TO_THE_END = 30.0  # reader with the final version: for a lost server; then that has ended

# A server waits for its child processes

EVALUATOR_HANGS = 300.0  # server: for a sign of work of its evaluator; then that is ended
EVALUATOR_SIGN = 2.0  # server: between two looks whether its evaluator works
CHILD_SETTINGS = 60.0  # child process: for the settings from its server

# Remote watchers wait for the process that serves a run's files

FILES_START = 30.0  # server, watcher: for the file server to listen
FILES_AGAIN = 2.0  # server: until it starts the next file server, where one has ended
FILES_IDLE = 60.0  # file server: for a request; then it ends
FILES_LINGER = 3.0  # file server, after the server's end: for requests of the last lines
FILES_EXIT = 2.0  # ending server: for the file server's exit after that
WATCHER_GONE = 5.0  # file server: for a request of a watcher; then it counts no longer
WATCH_FIRST = 10.0  # watcher: for the first files; then it fails
WATCH_ANSWER = 5.0  # watcher: for the answer to one request
WATCH_PERIOD = 1.0  # watcher: between two requests, once all is here
WATCH_EXIT = 10.0  # ending watcher: for what is under way

# wbsp.ray waits for the processes of a run

RAY_START = 60.0  # wbsp.ray: for a server that it has started to listen
RAY_STOP = 30.0  # wbsp.ray: for a run that is ended early to end in good order
RAY_SHORT = 60.0  # wbsp.ray: after a longer life, a process's failures are counted anew
RAY_PAUSE = 16.0  # wbsp.ray: before it starts a process again, at most

# A connection waits for its other side

PING = 1.0  # connection: between two pings while it is idle
PONG = 60.0  # connection: for an answer; a chunk (1 MiB) before it must pass in this time
UNACKNOWLEDGED = 30.0  # connection: for the other machine's kernel to acknowledge data

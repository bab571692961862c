"""How long one process waits for another: all such times in seconds, in one table.

A line has: name, seconds, the waiting process, what it waits for, and what it does then.
docs/reference/timeouts.md shows this table. How often a loop looks at its timers, or a line is
printed, stands in the module that does it.
"""

# A worker waits for its server

CONNECT = 120.0  # server and worker: for each other at the start; default of connect_timeout
WORKER_PATIENCE = 600.0  # worker: for a connection to server and shards; default of patience
SERVER_SILENT = 300.0  # worker: for a message of a connected server; then the worker fails
REQUEST_STALLED = 60.0  # worker: for progress of a request; then it is sent again
WORKER_BEAT = 1.0  # worker: between two heartbeats
SHARING_ENDED = 0.5  # worker without shared memory: for its connection's end; then it asks why
PRESENT_AGAIN = 2.0  # worker: for a shard's answer to its introduction; then it is repeated
SERVER_ENDED = 2.0  # worker of another fit: for an ended server, which may have been restarted
NEXT_RUN = 0.3  # worker: between two questions whether the next run has begun
FAREWELL = 5.0  # worker whose process ends after a fit: for the server to know; then it ends
NO_ANSWER = 2.0  # worker: for an answer at one of several addresses; then it tries the next
REFUSED = 0.25  # worker: as NO_ANSWER, if the connection was refused
HANDSHAKE = 30.0  # worker: as NO_ANSWER, if the connection was accepted (slow lines)
NOT_SERVING = 0.5  # worker: until it tries again after a process that does not serve

# A server waits for its workers

INTRODUCED = 10.0  # server: for the introduction of a peer that has sent another message first
WORKER_PROBED = 1.0  # server: for a message of a worker; then it tries the connection
WORKER_GONE = 5.0  # server: for a new connection of a worker; then the worker is lost
WORKER_ASLEEP = 10.0  # server: for a message of a worker; then idle others train its examples
INDEX_HELD = 2.0  # server: another process asks for an index; a later message of its owner holds it
INDEX_BACK = 25.0  # server: for an index's owner, between runs or after a resume; then it is free
WORKER_SILENT = 300.0  # server: for a message of a connected worker; then the worker is lost
INITIAL_STALLED = 60.0  # server: for a part of the initial model; then it asks another worker
PROGRESS = 1.0  # server: between two progress messages to a worker that sends a vector
REATTACH = 30.0  # resuming server: for the others once a worker is back, or who trains the rest
LAST_PUSH = 120.0  # stopping server: for progress of a worker's last push; then it drops the worker
VALIDATOR_HANGS = 60.0  # server: for a sign of work of a worker that validates an epoch for others
LOOP_HANGS = 300.0  # server of trained data: for such a sign of a worker that has not left
RETRY = 3.0  # ending server: for a worker that retries until the end is certain; then it ends
GOODBYE = 60.0  # ending server: for progress of a worker's fetch of the final version
INTERRUPTED = 15.0  # interrupted or failed server: for all of the last pushes
LAST_SAVE = 60.0  # server: for its disk to take a first or final version; then it exits with 1
SERVER_LINGER = 1.0  # ending server: for its last messages to leave

# A server and its shards wait for each other

SHARDS_MISSING = 600.0  # server whose run has begun: for its shards; then it ends
SHARDS_GRACE = 2.0  # server: for its shards, before it reports the wait to workers
SHARD_SILENT = 30.0  # server: for a message of a shard; then the shard is lost
SHARD_BEAT = 1.0  # server: between two heartbeats to a shard, and two requests to follow
SHARD_START = 60.0  # server: for a started shard to listen; then it ends
SHARD_EXIT = 1.0  # server: for the exit of a shard whose connection has ended
SHARDS_LAST = 600.0  # ending server: for the last version of its shards; then they are lost
SHARD_ALONE = 600.0  # shard: for a server; then it ends
SHARD_SERVER_PROBED = 2.0  # shard: for a message of its server; then it tries the connection
SHARD_SERVER_SILENT = 300.0  # shard: for a message of its connected server; then the server is lost
SHARD_TELL = 1.0  # shard: between two messages on arriving slices, or malformed messages

# A server and its standby wait for each other

ELECTION = 5.0  # server, standby: for a message of the other; then they ask workers for votes
PROOF = 4.0  # server, standby: time for which a refused connection proves the other's end
VOTE_AGAIN = 1.0  # server, standby: between two requests for votes
VOTE_WITHHELD = 60.0  # worker: for the server with all durable pushes; then it votes for another
CANDIDATE = VOTE_WITHHELD + 2.0  # restarted server: for withheld votes
PRIMARY_MISSING = 600.0  # standby: for its server, or the right to serve; then it ends
STANDBY_BEAT = 0.5  # standby: between two heartbeats to its server
LATER_SERVER = 30.0  # standby: for a later server that a worker knew of
SERVE_AGAIN = 10.0  # standby: until it tries again to serve, if the disk is full
REFUSAL_GAP = 5.0  # server, standby: after a longer pause another process may have refused it
STANDBY_PROBED = 1.0  # server: for a message of its standby; then it tries the connection
STANDBY_LOST = 30.0  # server: for a message of its connected standby; then the standby is lost
STANDBY_BACK = 3.0  # server: for a killed standby to return
SNAPSHOT_STALLED = 120.0  # server: for a part of a snapshot to reach its standby
LOOKED_INTO = 10.0  # server: until it checks again the report of a later server
INQUIRE_AGAIN = 0.5  # server: between two questions which process serves at the other's address
PROBE_ATTEMPT = 2.0  # server, standby: for an attempt to connect to the other's address
PROBE_AGAIN = 0.5  # server, standby: between two such attempts

# A run's epochs are validated

EPOCH_WHOLE = 0.5  # validating worker: for the rest of its epoch; then it takes the one before
EPOCH_VERSION = 30.0  # worker: for an epoch's version; then it continues without it
OTHERS_BACK = 3.0  # server at the end of a run: for its standby and readers of the run before
READ_TO_THE_END = 30.0  # reader with the final version: for a lost server; then it has ended

# A server waits for its child processes

EVALUATOR_HANGS = 300.0  # server: for progress of its evaluator; then it ends the evaluator
EVALUATOR_SIGN = 2.0  # server: between two checks whether its evaluator works
CHILD_SETTINGS = 60.0  # child process: for the settings from its server

# A process reads the versions of a server

READ_ANSWER = 5.0  # reader: for the answer to one question

# wbsp.run and wbsp.ray wait for the processes of a run

PROCESS_START = 60.0  # wbsp.run, wbsp.ray: for a started server to listen
PROCESS_STOP = 30.0  # wbsp.run, wbsp.ray: for a run that they stop early to end cleanly
PROCESS_SHORT = 60.0  # both: after a longer life, the count of a process's failures starts again
PROCESS_PAUSE = 16.0  # both: before they restart a process, at most
SERVER_FAILED = 10.0  # wbsp.run: for workers to end by themselves when their server has failed
UNJOINED = 60.0  # wbsp.run: for a worker to join, before a line that its script may train alone
WORKERS_ENDED = 5.0  # wbsp.run: for the server to end by itself when its workers have ended
HOST_CONNECT = 10.0  # wbsp.run: for ssh to connect to another machine
HOST_BEAT = 5.0  # wbsp.run: between two signs of life to another machine
HOST_LOST = 30.0  # wbsp.run: for a sign of life of another machine; then it connects again
HOST_SILENT = 120.0  # wbsp.run on another machine: for a sign of life; then it ends its workers
CHILDREN_LEFT = 5.0  # wbsp.run: for the children of an ended process; then it kills them

# A connection waits for its other side

PING = 1.0  # connection: between two pings while it is idle
PONG = 60.0  # connection: for an answer; a chunk (1 MiB) before it must pass in this time
UNACKNOWLEDGED = 30.0  # connection: for the other machine's kernel to acknowledge data

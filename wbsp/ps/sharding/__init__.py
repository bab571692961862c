"""A model in several processes, each with a range of the vector.

`store.py` takes the place of the server's store: it passes every record on, and collects a version
if a complete one is needed. `coordinator.py` is the server's side (the log, the attachments, the
connections). `shard.py` follows the log with the server's own store of a shorter vector, without
sockets; `process.py` is its event loop and process. The log contains, between the records,
everything that concerns the floats: so a version that is sent or collected is the one at that place
in the log, and no shard keeps an older one for later. A push with shards:

1. The worker sends the head of the update to the server, and the chunks of each slice to its shard.
2. A shard with a complete slice notifies the server (`Holds`), and keeps it until the log decides.
3. With the head and all notices, the engine decides as on a complete push.
4. The server sends the records to all shards: `Apply` with a weight or `Drop`, perhaps `Commit`,
   and `Send` for each version that a worker is to receive. It sends the answers to the workers.
5. Each shard sends its range to the worker, which assembles them (`wire/assembly.py`).
"""

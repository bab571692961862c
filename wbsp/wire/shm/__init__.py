"""Memory that a server and the workers of its machine share.

`segments.py` is the memory. `link.py` is the Unix socket that hands it over, and then carries all
messages. `lender.py` is the server's side, `borrower.py` the worker's. A worker sends its socket's
name when it joins or reattaches, and the server connects to it, if it can. Then:

- The worker copies an update into its segment, and its messages name places there. The server
  assembles the update in a vector of its own, and checks that copy.
- That vector lies in a segment, too, and so does the version that the server makes in its place. A
  worker reads it there, from its first adoption to the cut that makes another anchor. Each push and
  fetch names the answers that the worker no longer holds, and only then the server uses that memory
  again; never if the link has ended before.
- A standby maps the version where it lies and copies nothing: it can serve from there, whatever has
  ended the server. A version in no segment (W_0, or one from TCP workers) is sent.
- If the link ends, or memory cannot be shared, the worker reattaches over the network, as after a
  broken connection. So there is one way back, and no other state.
"""

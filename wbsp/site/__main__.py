"""`python -m wbsp.ps --upstream=host:port --site=0`: the server of a site.

That command executes this module with the same flags.
"""

import sys
from collections.abc import Sequence

from absl import flags

from wbsp.command import run
from wbsp.environment import Credentials, shares_memory
from wbsp.process.streams import open_streams
from wbsp.ps.__main__ import ABOUT, GROUPS
from wbsp.ps.__main__ import main as serve
from wbsp.ps.flags import bandwidth
from wbsp.site.upstream import Way
from wbsp.wire.addresses import all_here, split_addresses

FLAGS = flags.FLAGS


def way() -> Way:
    """Return the way to the server above.

    Raises:
        ValueError: a flag is missing or wrong; one line.
        OSError: the token file cannot be read; one line.
    """
    if FLAGS.upstream is None:
        raise ValueError("a site needs the server above, such as --upstream=localhost:2606")
    if FLAGS.site is None:
        raise ValueError("--upstream needs the index of this site there, such as --site=0")
    if FLAGS.shard:
        raise ValueError("--shard and --upstream do not go together: a shard is not a server")
    split_addresses(FLAGS.upstream)
    upstream = FLAGS.upstream
    credentials = Credentials(FLAGS.upstream_token_file, lambda: not all_here(upstream),
                              "WBSP_UPSTREAM_TOKEN_FILE")
    if (warning := credentials.warning()) is not None:
        print(warning, file=sys.stderr)
    return Way(upstream, FLAGS.site, credentials.token, bandwidth(),
               shares_memory(FLAGS.transport), FLAGS.connect_timeout, credentials.other)


def main(argv: Sequence[str]) -> int:
    try:
        above = way()
    except (ValueError, OSError) as error:
        print(f"wbsp.ps: {error}", file=sys.stderr)
        return 1
    return serve(argv, above)


if __name__ == "__main__":
    open_streams()
    run(main, "wbsp ps", ABOUT, GROUPS)

"""`python -m wbsp.ps --upstream=host:port --site=0`: the server of a site.

That command executes this module with the same flags.
"""

import sys
from collections.abc import Sequence
from functools import partial

from absl import flags

from wbsp import units
from wbsp.access import Access
from wbsp.command import run
from wbsp.environment import shares_memory
from wbsp.process.streams import open_streams
from wbsp.ps.__main__ import ABOUT, GROUPS
from wbsp.ps.__main__ import main as serve
from wbsp.ps.flags import bandwidth
from wbsp.site.upstream import Upstream
from wbsp.wire.addresses import split_addresses

FLAGS = flags.FLAGS


def above() -> partial[Upstream]:
    """Return what makes the line to the server above: see `ServerConfig`.

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
    units.of_flag("upstream", FLAGS.upstream, split_addresses)
    access = Access(FLAGS.upstream, FLAGS.upstream_token_file, "WBSP_UPSTREAM_TOKEN_FILE",
                    timeout=FLAGS.connect_timeout, bandwidth=bandwidth(),
                    share=shares_memory(FLAGS.transport))
    access.warn(partial(print, file=sys.stderr))
    return partial(Upstream, access, FLAGS.site)


def main(argv: Sequence[str]) -> int:
    try:
        line = above()
    except (ValueError, OSError) as error:
        print(f"wbsp.ps: {error}", file=sys.stderr)
        return 1
    return serve(argv, line)


if __name__ == "__main__":
    open_streams()
    run(main, "wbsp ps", ABOUT, GROUPS)

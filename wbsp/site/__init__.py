"""A site: a server with its workers that is itself one worker of another server."""

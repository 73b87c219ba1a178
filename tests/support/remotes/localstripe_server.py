"""localstripe listens on every interface by itself; this serves the same app on loopback.

usage: python localstripe_server.py PORT, with the Python of the servers' environment.
"""

import sys

from aiohttp import web
from localstripe import server  # lives in the servers' environment

# It writes its memory to one fixed file in /tmp after each change; parallel runs would share it.
server.store.dump_to_disk = lambda: None

web.run_app(server.app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)

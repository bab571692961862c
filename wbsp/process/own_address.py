"""The address at which other machines reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

EVERY_INTERFACE = "*", "0.0.0.0", "::", "[::]"  # addresses to listen on


def address_for_others(host: str) -> str:
    """Return the address at which other machines probably reach a socket that listens on `host`."""
    if host not in EVERY_INTERFACE:
        return host.strip("[]")
    # The source of packets that leave for another network, of which none is sent.
    for family, outside in (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"):
        if family == socket.AF_INET6 and host == "0.0.0.0":
            continue
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))
            if _may_be(found := probe.getsockname()[0]):
                return str(found)
    import psutil  # it takes its time, and a machine without a way out is rare

    for family in socket.AF_INET, socket.AF_INET6:
        for addresses in psutil.net_if_addrs().values():
            for one in addresses:
                if one.family == family and _may_be(one.address):
                    return str(one.address)
    return socket.gethostname()


def _may_be(text: str) -> bool:
    """Return whether an address of this machine may be known to others."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return not (address.is_loopback or address.is_link_local)

"""Addresses as users write them, and as ZeroMQ expects them."""

from __future__ import annotations

import ipaddress

from wbsp.process.host import HOST, Network
from wbsp.process.own_address import EVERY_INTERFACE


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this host name or address, as it is written."""
    if _is_localhost(host):
        return True
    try:
        address = ipaddress.ip_address(plain_address(host.partition("%")[0]))
    except ValueError:
        return False
    return address.is_loopback


def _is_localhost(host: str) -> bool:
    return host.lower().rstrip(".") == "localhost"


def only_here(host: str, network: Network = HOST.network) -> bool:
    """Return whether only this machine can reach this host name or address, as it resolves.

    A name that is not known yet may be another machine's.
    """
    if is_loopback(host) or host in EVERY_INTERFACE:
        return is_loopback(host)
    try:
        found = network.resolve(host, 0)
    except OSError:
        return False
    return all(is_loopback(str(where[0])) for *_, where in found)


def all_here(addresses: str) -> bool:
    """Return whether all of 'host:port,host:port' are on this machine: see `only_here`."""
    return all(only_here(host) for host, _ in split_addresses(addresses))


def to_check(addresses: str) -> str:
    """Return what to check where no process answers at 'host:port,host:port', in one line."""
    if all(is_loopback(host) for host, _ in split_addresses(addresses)):
        return ("check that it runs on this machine and that the port is right; one on another "
                f"machine needs --host=0.0.0.0, and its address here in place of {addresses}")
    return ("check that it runs there, that it listens for other machines (--host=0.0.0.0), and "
            "that the port is right and no firewall closes it")


def own_address(host: str, network: Network = HOST.network) -> str:
    """Return the address to listen on for a name of this machine; other text unchanged.

    libzmq resolves no names there, but it knows interfaces.
    """
    if host == "*" or _is_localhost(host):
        return host
    try:
        return str(network.resolve(host, 0)[0][2][0])
    except (OSError, IndexError):
        return host


def endpoint(host: str, port: int) -> str:
    """Return ZeroMQ's `tcp://` address; the brackets of an IPv6 host are optional."""
    if _is_localhost(host):
        host = "127.0.0.1"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"tcp://{host}:{port}"


def plain_address(text: str) -> str:
    """Return a numeric address in its usual form, and other text unchanged.

    A socket of both IP versions may name an IPv4 address as IPv6 does: `::ffff:10.0.0.1`.
    """
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def endpoints(host: str, port: int, network: Network = HOST.network) -> list[str]:
    """Return all addresses of a host name.

    libzmq itself tries only the first one, which is the IPv6 address if there are both kinds.
    Raises OSError for an unknown name.
    """
    if _is_localhost(host):
        return [endpoint(host, port)]
    return list(dict.fromkeys(endpoint(str(where[0]), port)
                              for *_, where in network.resolve(host, port)))


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of 'host:port'. Raises ValueError in one clear line."""
    host, colon, port = address.rpartition(":")
    number = port.isascii() and port.isdigit()
    if not (colon and host and "/" not in host and number and len(port) < 6
            and 0 < int(port) < 65536):
        raise ValueError(f"address {address[:100]!r} is not host:port, for example localhost:2606")
    return host, int(port)


def split_addresses(text: str) -> list[tuple[str, int]]:
    """Return hosts and ports of 'host:port,host:port'. Raises ValueError in one clear line."""
    return [split_address(address.strip()) for address in text.split(",")]

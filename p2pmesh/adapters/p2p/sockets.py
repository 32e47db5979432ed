"""TCP connections that leave from the port that we listen on, and the addresses of this machine.

A NAT has one mapping for what leaves from that port, and it is the one that others can come in by. The listening socket
owns its port alone (``hardening``); it shares it for the moment in which another socket is bound to it, and no longer.
"""

import errno
import socket as stdlib_socket
from ipaddress import ip_address

import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.transport.tcp.tcp import TCPListener

from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.core.addresses import is_inner


def listening_sockets(swarm: Swarm) -> tuple[trio.socket.SocketType, ...]:
    """All that the swarm listens on over TCP."""
    found = (listener for listener in swarm.listeners.values() if isinstance(listener, TCPListener))
    return tuple(one.socket for listener in found for one in listener.listeners)


def listen_port(swarm: Swarm) -> int | None:
    """The port that is listened on; None if there is none, or not one alone."""
    ports = {int(sock.getsockname()[1]) for sock in listening_sockets(swarm)}
    return ports.pop() if len(ports) == 1 else None


def listens_on_loopback_alone(swarm: Swarm) -> bool:
    """Whether only this machine can reach us."""
    return all(_is_loopback(str(sock.getsockname()[0])) for sock in listening_sockets(swarm))


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::1"))


def _listener_for(swarm: Swarm, host: str) -> trio.socket.SocketType | None:
    family = stdlib_socket.AF_INET6 if ":" in host else stdlib_socket.AF_INET
    for sock in listening_sockets(swarm):
        if sock.family == family and _is_loopback(str(sock.getsockname()[0])) == _is_loopback(host):
            return sock
    return next((sock for sock in listening_sockets(swarm) if sock.family == family), None)


async def connect_from_listen_port(swarm: Swarm, host: str, port: int) -> RawConnection:
    """A connection to an IP address; ``PeerUnavailable`` where it is refused or no socket can be had.

    Cancelled, it leaves nothing behind; a second one to the same address fails while the first stands.
    """
    listener = _listener_for(swarm, host)
    if listener is None:
        raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "nothing is listened on that reaches there")
    sock = trio.socket.socket(listener.family, stdlib_socket.SOCK_STREAM)
    try:
        await _share_port(sock, listener)
        await sock.connect((host, port))
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            text = f"cannot connect to {host} port {port} from our own port: {error.strerror or error}"
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, text) from error
        raise
    return RawConnection(TrioTCPStream(trio.SocketStream(sock)), True)


async def _share_port(sock: trio.socket.SocketType, listener: trio.socket.SocketType) -> None:
    if not hasattr(stdlib_socket, "SO_REUSEPORT"):
        raise OSError(errno.ENOTSUP, "this system shares no ports")
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEADDR, 1)
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEPORT, 1)
    if sock.family == stdlib_socket.AF_INET6:
        sock.setsockopt(stdlib_socket.IPPROTO_IPV6, stdlib_socket.IPV6_V6ONLY, 1)
    listener.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEPORT, 1)
    try:
        await sock.bind(listener.getsockname())
    finally:
        listener.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEPORT, 0)
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEPORT, 0)


def interface_addresses(*, is_inner_only: bool = False) -> frozenset[str]:
    """IP addresses of this machine's interfaces, loopback left out; empty where the system does not say.

    With ``is_inner_only`` those behind which only its containers and virtual machines are.
    """
    up = (one for one in SystemInterfaces().survey() if one.is_up)
    hosts = (ip_address(one.address) for one in up if is_inner(one) or not is_inner_only)
    return frozenset(str(host) for host in hosts if not host.is_loopback and not host.is_link_local)

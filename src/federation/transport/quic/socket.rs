//! The UDP socket: buffers raised, IPv4 and IPv6 on `[::]`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes asked for per direction. The kernel gives what `net.core.rmem_max` and `wmem_max` allow: its default of 208 KiB
/// holds 3 ms of a gigabit, and a scheduling delay is longer than that.
const BUFFER: usize = 4 << 20;

/// Bytes of UDP's payload that are tried on a path, and taken from peers. Networks of clouds and of HPC sites carry jumbo frames,
/// and a packet costs about the same whatever is in it. quinn hands the kernel 10 packets at a time, which may be 65,507 bytes
/// together: of larger ones, all 10 are lost.
pub(super) const LARGEST_PACKET: u16 = 6_500;

const _: () = assert!(10 * LARGEST_PACKET as u32 <= 65_507, "as the kernel takes them");

/// Why the agent cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("failed to {step} UDP {address}; federation.listen is the address, and no other process may have it")]
pub struct BindError {
    /// What was asked for.
    pub address: SocketAddr,
    /// What failed.
    pub step: &'static str,
    /// Why.
    pub source: io::Error,
}

/// A socket on `address` with a QUIC endpoint on it; without `server`, it only dials.
pub(crate) fn endpoint(address: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint, BindError> {
    let failed = |step| move |source| BindError { address, step, source };
    let socket = socket(address)
        .or_else(|error| match without_ipv6(address, &error) {
            Some(address) => socket(address),
            None => Err(error),
        })
        .map_err(failed("listen on"))?;
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(LARGEST_PACKET).expect("a packet of QUIC has 1,200 to 65,527 bytes");
    Endpoint::new(config, server, socket, Arc::new(TokioRuntime)).map_err(failed("run QUIC on"))
}

/// Takes the socket away from an endpoint that is closed, so that its port is free at once. A connection that was closed
/// holds it for three more round trips at their worst (RFC 9000, 10.2), which for one whose peer never answered are 3 s.
pub(super) fn release(endpoint: &Endpoint) {
    // Of two sockets the endpoint listens to the one before as well, for what is under way.
    for _ in 0..2 {
        let elsewhere = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        if let Err(error) = elsewhere.and_then(|socket| endpoint.rebind(socket)) {
            tracing::debug!(%error, "failed to take the UDP socket away from a closed endpoint");
        }
    }
}

/// Where to listen instead, if `[::]` was asked for on a machine that has no IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let taken = matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied);
    let everywhere = address.is_ipv6() && address.ip().is_unspecified();
    (everywhere && !taken).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

fn socket(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Smaller buffers cost throughput, not correctness.
    if let Err(error) = socket.set_recv_buffer_size(BUFFER).and_then(|()| socket.set_send_buffer_size(BUFFER)) {
        tracing::debug!(%error, "failed to raise the buffers of the UDP socket");
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everywhere_is_ipv4_only_where_there_is_no_ipv6() {
        let no_ipv6 = io::Error::from_raw_os_error(97);
        let taken = io::Error::from(io::ErrorKind::AddrInUse);
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(without_ipv6(at("[::]:7946"), &no_ipv6), Some(at("0.0.0.0:7946")));
        assert_eq!(without_ipv6(at("[::]:7946"), &taken), None);
        assert_eq!(without_ipv6(at("[2001:db8::1]:7946"), &no_ipv6), None, "one that was asked for by name");
        assert_eq!(without_ipv6(at("0.0.0.0:7946"), &no_ipv6), None);
    }
}

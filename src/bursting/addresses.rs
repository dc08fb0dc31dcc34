//! Which addresses a lead broker can have.
//!
//! Checked on both sides: on the root so that nobody is sent nowhere, on the provider because the address is another
//! cluster's word, and an EndpointSlice to a node's loopback, to cloud metadata or into our own pods would be an attack.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, like `10.244.0.0/16`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range {
    network: IpAddr,
    prefix: u8,
}

impl FromStr for Range {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let invalid = || InvalidRange(text.to_owned());
        let (network, prefix) = text.split_once('/').ok_or_else(invalid)?;
        let network: IpAddr = network.parse().map_err(|_| invalid())?;
        let prefix: u8 = prefix.parse().map_err(|_| invalid())?;
        let longest = if network.is_ipv4() { 32 } else { 128 };
        if prefix > longest { Err(invalid()) } else { Ok(Self { network, prefix }) }
    }
}

/// A text that is no range of addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no range of addresses: write it like 10.244.0.0/16")]
pub struct InvalidRange(String);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Range {
    /// Whether an address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                u32::from(network) & mask == u32::from(address) & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                u128::from(network) & mask == u128::from(address) & mask
            }
            _ => false,
        }
    }
}

/// Why an address cannot be a lead broker's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{address} is {what}")]
pub struct Unusable {
    address: IpAddr,
    what: String,
}

/// Checks that `address` can be reached from another cluster: no loopback, link-local, unspecified, multicast or
/// broadcast address, and in none of `own` (this cluster's pod and service ranges, as far as they are known).
///
/// # Errors
/// What the address is.
pub fn check(address: IpAddr, own: &[Range]) -> Result<IpAddr, Unusable> {
    let address = address.to_canonical();
    let unusable = |what: &str| Err(Unusable { address, what: what.to_owned() });
    if address.is_unspecified() {
        return unusable("no address of a machine (unspecified)");
    }
    if address.is_loopback() {
        return unusable("a loopback address");
    }
    if address.is_multicast() {
        return unusable("a multicast address");
    }
    let (link_local, broadcast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.is_broadcast() || v4.octets()[0] == 0),
        IpAddr::V6(v6) => (is_link_local(v6), false),
    };
    if link_local {
        return unusable("a link-local address");
    }
    if broadcast {
        return unusable("no address of a machine");
    }
    match own.iter().find(|range| range.contains(address)) {
        Some(range) => unusable(&format!("in this cluster's own pod or service range {range}")),
        None => Ok(address),
    }
}

/// `fe80::/10` (RFC 4291 section 2.5.6).
fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_other_clusters_can_reach_pass() {
        let own: Vec<Range> =
            ["10.244.0.0/16", "10.96.0.0/12", "fd00:10::/64"].map(|text| text.parse().unwrap()).into();
        let table = [
            ("192.0.2.7", Ok("192.0.2.7")),
            ("10.245.0.1", Ok("10.245.0.1")),
            ("2001:db8::1", Ok("2001:db8::1")),
            ("::ffff:192.0.2.7", Ok("192.0.2.7")),
            ("127.0.0.1", Err("a loopback address")),
            ("::1", Err("a loopback address")),
            ("::ffff:127.0.0.1", Err("a loopback address")),
            ("169.254.169.254", Err("a link-local address")),
            ("fe80::1", Err("a link-local address")),
            ("febf::1", Err("a link-local address")),
            ("0.0.0.0", Err("no address of a machine (unspecified)")),
            ("0.1.2.3", Err("no address of a machine")),
            ("::", Err("no address of a machine (unspecified)")),
            ("224.0.0.1", Err("a multicast address")),
            ("ff02::1", Err("a multicast address")),
            ("255.255.255.255", Err("no address of a machine")),
            ("10.244.3.4", Err("in this cluster's own pod or service range 10.244.0.0/16")),
            ("10.111.0.1", Err("in this cluster's own pod or service range 10.96.0.0/12")),
            ("fd00:10::7", Err("in this cluster's own pod or service range fd00:10::/64")),
        ];
        for (text, expected) in table {
            let got = check(text.parse().unwrap(), &own).map(|address| address.to_string()).map_err(|e| e.what);
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn ranges_are_read_strictly() {
        let all: Range = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("203.0.113.9".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        let one: Range = "192.0.2.1/32".parse().unwrap();
        assert!(one.contains("192.0.2.1".parse().unwrap()) && !one.contains("192.0.2.2".parse().unwrap()));
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/-1"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }
}

//! Which addresses a lead broker can have, wherever it runs. What of a cluster is its own, [`super::ours`] knows.
//!
//! Checked on both sides: on the root so that nobody is sent nowhere, on the provider because the address is another
//! cluster's word, and an EndpointSlice to a node's loopback, to cloud metadata or into our own pods would be an attack.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

/// A range of addresses, like `10.244.0.0/16`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range(IpNet);

impl FromStr for Range {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        // Not as ipnet reads it: that takes `010.0.0.0`, which is another address to those who read it as octal.
        let parsed = text.split_once('/').and_then(|(network, prefix)| {
            let network = network.parse::<IpAddr>().ok()?;
            IpNet::new(network, prefix.parse().ok()?).ok()
        });
        parsed.map(Self).ok_or_else(|| InvalidRange(text.to_owned()))
    }
}

/// A text that is no range of addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no range of addresses: write it like 10.244.0.0/16")]
pub struct InvalidRange(String);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Range {
    /// Whether an address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

/// Why an address cannot be a lead broker's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{address} is {what}")]
pub struct Unusable {
    /// The address.
    pub address: IpAddr,
    /// What it is, after `is`.
    pub what: String,
}

const fn v4(octets: [u8; 4], prefix: u8) -> Range {
    let [a, b, c, d] = octets;
    Range(IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix))
}

const fn v6(segments: [u16; 8], prefix: u8) -> Range {
    let [a, b, c, d, e, f, g, h] = segments;
    Range(IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix))
}

/// Addresses that no machine of another cluster has, with what they are. The first that holds counts.
///
/// Sources: the registries of special-purpose addresses, <https://www.iana.org/assignments/iana-ipv4-special-registry> and
/// <https://www.iana.org/assignments/iana-ipv6-special-registry>; and of metadata services, which give a node's rights to
/// whoever reaches them:
/// - Amazon: <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html> (169.254.169.254,
///   `fd00:ec2::254`), <https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html> (`fd00:ec2::23`)
/// - Azure: <https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16>
/// - Alibaba Cloud: <https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata> (100.100.100.200)
/// - Google Cloud: <https://cloud.google.com/compute/docs/metadata/querying-metadata> (`fd20:ce::254`)
/// - Oracle Cloud: <https://docs.oracle.com/iaas/Content/Compute/Tasks/gettingmetadata.htm> (`fd00:c1::a9fe:a9fe`)
/// - Scaleway: <https://www.scaleway.com/en/docs/instances/how-to/use-cloud-init/> (`fd00:42::42`)
///
/// OpenStack's and most others' are link-local.
const NO_LEADS: [(Range, &str); 24] = [
    (v4([0, 0, 0, 0], 32), "no address of a machine (unspecified)"),
    (v4([0, 0, 0, 0], 8), "no address of a machine"),
    (v4([127, 0, 0, 0], 8), "a loopback address"),
    (v4([169, 254, 0, 0], 16), "a link-local address"),
    (v4([192, 0, 0, 0], 24), "no address of a machine (RFC 6890)"),
    (v4([168, 63, 129, 16], 32), "Azure's own service for its machines"),
    (v4([100, 100, 100, 200], 32), "Alibaba Cloud's metadata service"),
    (v4([224, 0, 0, 0], 4), "a multicast address"),
    (v4([240, 0, 0, 0], 4), "no address of a machine"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "no address of a machine (unspecified)"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "a loopback address"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "an IPv4-compatible address (RFC 4291 has done away with them)"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "a link-local address"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "a site-local address (RFC 3879 has done away with them)"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "a multicast address"),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), "one of Amazon's own services for its machines"),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), "Google Cloud's metadata service"),
    (v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), "Oracle Cloud's metadata service"),
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), "Scaleway's metadata service"),
    // These stand for IPv4 addresses, and which is not ours to say.
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "an address of a local NAT64 (RFC 8215)"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "a 6to4 address (RFC 7526 has done away with them)"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "a Teredo address (RFC 4380)"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "no address of a machine (RFC 6666)"),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "no address of a machine (RFC 9602)"),
];

/// Where translators of IPv6-only networks put an IPv4 address into the last 32 bits (RFC 6052).
const NAT64: Range = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

/// The address as it is reached: an IPv4 address that is written as an IPv6 one is IPv4.
pub(crate) fn meant(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if NAT64.contains(IpAddr::V6(v6)) => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        address => address,
    }
}

/// Checks that `address` can be that of a machine of another cluster. The address to use: the same, but for IPv4 addresses
/// that are written as IPv6 ones (`::ffff:192.0.2.7`).
///
/// # Errors
/// What the address is.
pub fn check(address: IpAddr) -> Result<IpAddr, Unusable> {
    let (address, meant) = (address.to_canonical(), meant(address));
    match NO_LEADS.iter().find(|(range, _)| range.contains(meant)) {
        Some((_, what)) => Err(Unusable { address, what: (*what).to_owned() }),
        None => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_a_machine_elsewhere_can_have_pass() {
        let table = [
            ("192.0.2.7", Ok("192.0.2.7")),
            ("10.245.0.1", Ok("10.245.0.1")),
            ("100.100.100.201", Ok("100.100.100.201")),
            ("2001:db8::1", Ok("2001:db8::1")),
            ("fd00:10::7", Ok("fd00:10::7")),
            ("::ffff:192.0.2.7", Ok("192.0.2.7")),
            ("64:ff9b::192.0.2.7", Ok("64:ff9b::c000:207")),
            ("127.0.0.1", Err("a loopback address")),
            ("127.200.0.1", Err("a loopback address")),
            ("::1", Err("a loopback address")),
            ("::ffff:127.0.0.1", Err("a loopback address")),
            ("64:ff9b::127.0.0.1", Err("a loopback address")),
            ("::127.0.0.1", Err("an IPv4-compatible address (RFC 4291 has done away with them)")),
            ("169.254.169.254", Err("a link-local address")),
            ("::ffff:169.254.169.254", Err("a link-local address")),
            ("64:ff9b::169.254.169.254", Err("a link-local address")),
            ("64:ff9b:1::169.254.169.254", Err("an address of a local NAT64 (RFC 8215)")),
            ("2002:a9fe:a9fe::1", Err("a 6to4 address (RFC 7526 has done away with them)")),
            ("2001:0:a9fe:a9fe::1", Err("a Teredo address (RFC 4380)")),
            ("169.254.170.23", Err("a link-local address")),
            ("fd00:ec2::254", Err("one of Amazon's own services for its machines")),
            ("fd00:ec2::23", Err("one of Amazon's own services for its machines")),
            ("168.63.129.16", Err("Azure's own service for its machines")),
            ("100.100.100.200", Err("Alibaba Cloud's metadata service")),
            ("fd20:ce::254", Err("Google Cloud's metadata service")),
            ("fd00:c1::a9fe:a9fe", Err("Oracle Cloud's metadata service")),
            ("fd00:42::42", Err("Scaleway's metadata service")),
            ("192.0.0.192", Err("no address of a machine (RFC 6890)")),
            ("fe80::1", Err("a link-local address")),
            ("febf::1", Err("a link-local address")),
            ("fec0::1", Err("a site-local address (RFC 3879 has done away with them)")),
            ("0.0.0.0", Err("no address of a machine (unspecified)")),
            ("0.1.2.3", Err("no address of a machine")),
            ("::", Err("no address of a machine (unspecified)")),
            ("::ffff:0.0.0.0", Err("no address of a machine (unspecified)")),
            ("224.0.0.1", Err("a multicast address")),
            ("ff02::1", Err("a multicast address")),
            ("255.255.255.255", Err("no address of a machine")),
            ("240.0.0.1", Err("no address of a machine")),
        ];
        for (text, expected) in table {
            let got = check(text.parse().unwrap()).map(|address| address.to_string()).map_err(|e| e.what);
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn ranges_are_read_strictly() {
        let all: Range = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("203.0.113.9".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        let one: Range = "192.0.2.1/32".parse().unwrap();
        assert!(one.contains("192.0.2.1".parse().unwrap()) && !one.contains("192.0.2.2".parse().unwrap()));
        for text in ["10.0.0.7/8", "2001:db8::/32"] {
            assert_eq!(text.parse::<Range>().unwrap().to_string(), text);
        }
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/-1", "010.0.0.0/8"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }
}

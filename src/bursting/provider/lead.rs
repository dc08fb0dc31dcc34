//! Where the lead broker of a hosted burst is: a peer's word, which is judged each time before it is used. Pure.
//!
//! What the peer is told of it is less than what the HostedBurst says: its root's user chooses the address, and would learn
//! from the answers who listens where in this cluster's networks, and which names and addresses there are.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tributary_api::hosted_burst::HostedBurst;
use tributary_contract::{DesiredBurst, PeerName, Rejection, RejectionReason};

use super::slot::{Change, SlotStep, SlotView};
use super::teardown::wake;
use crate::addresses::Unusable;
use crate::peers;

/// Where a lead is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Lead {
    /// Where it is reached: none of these is ours. Empty: nobody can be sent there.
    pub(super) ends: Vec<SocketAddr>,
    /// Why nobody can be sent there.
    pub(super) trouble: String,
    /// The same, as far as the peer is told.
    pub(super) told: String,
    /// No lead may be there.
    pub(super) refused: bool,
    /// Brokers that there are stay where they were led: this leader does not know yet where it is, or nobody says any more where
    /// it may be.
    pub(super) stays: bool,
}

impl Lead {
    fn unknown(trouble: String) -> Self {
        Self { told: trouble.clone(), trouble, ..Self::default() }
    }
}

/// Whether an offer may have the address it names for its lead. A name is judged when it is resolved.
///
/// # Errors
/// [`RejectionReason::LeadAddressRefused`] with the address and the rule.
pub(super) fn admit(view: &SlotView<'_>, peer: &PeerName, desired: &DesiredBurst) -> Result<(), Rejection> {
    let named = desired.lead.as_ref().filter(|_| !desired.tunnel && !desired.whole);
    let Some(address) = named.and_then(|lead| lead.address.parse::<IpAddr>().ok()) else { return Ok(()) };
    match judge(view, peer, address) {
        Ok(_) => Ok(()),
        Err(error) => Err(Rejection::new(RejectionReason::LeadAddressRefused, told(view, &error))),
    }
}

/// How long brokers stay where an earlier leader led them while this one cannot find out where that is.
const UNKNOWN_AT_MOST: Duration = Duration::from_secs(300);

/// The lead of a hosted burst: at our agent, or at the address in the spec; a host name as it was resolved.
pub(super) fn find(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) -> Lead {
    if hosted.spec.tunnel {
        return match view.inlet {
            Ok(inlet) => Lead { ends: vec![*inlet], ..Lead::default() },
            Err(why) => Lead::unknown(format!("the tunnel to the lead broker is not there: {why}")),
        };
    }
    let Some(lead) = &hosted.spec.lead else {
        return Lead::unknown("the lead broker's address is not known yet".into());
    };
    let (peer, end) = (PeerName::from(hosted.spec.peer.as_str()), |ip| SocketAddr::new(ip, lead.port));
    if peers::import(view.peers, &peer).is_none() {
        let trouble =
            format!("there is no import of ClusterPeer {peer} any more: its brokers here are led nowhere else");
        return Lead { stays: true, ..Lead::unknown(trouble) };
    }
    if let Ok(address) = lead.address.parse::<IpAddr>() {
        return match judge(view, &peer, address) {
            Ok(ip) => Lead { ends: vec![end(ip)], ..Lead::default() },
            Err(error) => {
                let trouble = format!("the lead's address is refused: {error}");
                Lead { trouble, told: told(view, &error), refused: true, ..Lead::default() }
            }
        };
    }
    let now = view.now.mono;
    let (first, since) = step.memory.asked_first.get_or_insert_with(|| (lead.address.clone(), now));
    let is_first = *first == lead.address && now.saturating_since(*since) < UNKNOWN_AT_MOST;
    let found = match step.memory.resolved(&lead.address, now) {
        Some((found, again)) => {
            wake(step, again);
            found
        }
        None => {
            if !std::mem::replace(&mut step.memory.resolving, true) {
                step.changes.push(Change::Resolve(lead.address.clone()));
            }
            if step.memory.resolution.as_ref().is_none_or(|known| known.host != lead.address) {
                return Lead { stays: true, ..Lead::unknown("the lead's host name is being resolved".into()) };
            }
            step.memory.last_resolved(&lead.address)
        }
    };
    let told = format!("{} leads to no address at which this cluster may look for a lead broker", lead.address);
    let addresses = match found {
        Ok(addresses) => addresses,
        Err(message) => {
            let trouble = format!("the lead's host name cannot be resolved: {message}");
            // As if it were refused: nobody learns which names there are. The name that a leader finds was judged by the one before.
            return Lead { trouble, told, refused: true, stays: is_first && !step.memory.led, ..Lead::default() };
        }
    };
    let judged = addresses.into_iter().map(|address| judge(view, &peer, address));
    let (good, bad): (Vec<_>, Vec<_>) = judged.partition(Result::is_ok);
    let ends: Vec<_> = good.into_iter().flatten().map(end).collect();
    match bad.into_iter().find_map(Result::err) {
        Some(error) if ends.is_empty() => {
            let trouble = format!("the lead's address is refused: {error}");
            Lead { ends, trouble, told, refused: true, ..Lead::default() }
        }
        _ => Lead { ends, ..Lead::default() },
    }
}

fn judge(view: &SlotView<'_>, peer: &PeerName, address: IpAddr) -> Result<IpAddr, Unusable> {
    view.ours.check_of_peer(
        address,
        peers::import(view.peers, peer).map(|import| import.lead_ranges.as_slice()).unwrap_or_default(),
    )
}

/// That an address is refused. Whose it is here, is not told.
fn told(view: &SlotView<'_>, Unusable { address, what }: &Unusable) -> String {
    let what = match view.ours.whose(*address) {
        Some(_) => "this cluster's own: of a node, a pod, a Service or an API server",
        None => what,
    };
    format!("the lead's address is refused: {address} is {what}")
}

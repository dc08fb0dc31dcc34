//! Which bursts are carried through the agents' own connection: who may connect, and where to. Pure but for the tables that
//! the federation reads.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::HostedBurst;
use tributary_contract::tunnel::{AllEnds, Ends, Inlet, Inlets, Listening, Outlet, Outlets, TunnelKey};
use tributary_render::ENDS_PORT;

use super::nodes::PodView;
use super::provider::materialize::LEAD_PORT;
use super::root::lead_address::lead_pod;
use super::root::offer;

/// The tables that bursting and the federation share.
pub struct Tunnels {
    /// Address of this agent in its cluster's network, where brokers of bursts find it.
    address: Option<IpAddr>,
    outlets: watch::Sender<Outlets>,
    inlets: watch::Sender<Inlets>,
    listening: watch::Sender<Listening>,
    ends: watch::Sender<AllEnds>,
    /// The bursts as they are, and those whose lead this agent itself is looking at through their port.
    admitted: Mutex<Admitted>,
}

#[derive(Default)]
struct Admitted {
    inlets: Inlets,
    knocking: BTreeMap<TunnelKey, u32>,
}

/// Lets this agent in at the port of a burst until it is dropped.
pub(super) struct Knock {
    tunnels: Arc<Tunnels>,
    key: TunnelKey,
}

impl Drop for Knock {
    fn drop(&mut self) {
        let mut admitted = self.tunnels.admitted.lock();
        if let Entry::Occupied(mut knocking) = admitted.knocking.entry(self.key.clone()) {
            *knocking.get_mut() -= 1;
            if *knocking.get() == 0 {
                knocking.remove();
            }
        }
        self.tunnels.publish(&admitted, &self.key);
    }
}

impl Tunnels {
    /// Nothing is carried yet. `address`: of this agent's pod.
    pub(super) fn new(address: Option<IpAddr>) -> Self {
        let (outlets, inlets) = (watch::Sender::default(), watch::Sender::default());
        let (listening, ends) = (watch::Sender::default(), watch::Sender::default());
        Self { address, outlets, inlets, listening, ends, admitted: Mutex::default() }
    }

    /// Root side: where the connections of our bursts lead.
    pub fn outlets(&self) -> watch::Receiver<Outlets> {
        self.outlets.subscribe()
    }

    /// Provider side: bursts of peers, and who may connect for them.
    pub fn inlets(&self) -> watch::Receiver<Inlets> {
        self.inlets.subscribe()
    }

    /// Where the federation tells the ports.
    pub fn listening(&self) -> watch::Sender<Listening> {
        self.listening.clone()
    }

    /// Where the federation tells of open connections of our bursts.
    pub fn ends(&self) -> watch::Sender<AllEnds> {
        self.ends.clone()
    }

    /// The open connections of a burst of ours.
    pub(super) fn ends_of(&self, key: &TunnelKey) -> Ends {
        self.ends.borrow().get(key).copied().unwrap_or_default()
    }

    /// The end of a burst's connections at this agent.
    pub(super) fn inlet_of(&self, key: &TunnelKey) -> Result<SocketAddr, String> {
        let Some(address) = self.address else {
            return Err(
                "this agent does not know its own address: set federation.pod_ips, or federation.tunnel.address".into(),
            );
        };
        match self.listening.borrow().get(key) {
            Some(Ok(port)) => Ok((address, *port).into()),
            Some(Err(why)) => Err(why.clone()),
            None => Err("the agent does not listen yet".into()),
        }
    }

    /// Nothing is carried in a term that has not begun.
    pub(super) fn clear(&self) {
        self.outlets.send_replace(Outlets::new());
        let mut admitted = self.admitted.lock();
        admitted.inlets.clear();
        self.inlets.send_replace(Inlets::new());
    }

    /// Lets this agent in at the port of a burst, to look whether its lead answers: until what is returned is dropped.
    pub(super) fn knock(self: &Arc<Self>, key: TunnelKey) -> Knock {
        let mut admitted = self.admitted.lock();
        *admitted.knocking.entry(key.clone()).or_default() += 1;
        self.publish(&admitted, &key);
        Knock { tunnels: self.clone(), key }
    }

    /// Says what became of a burst of ours, and then does `offer`: who does not hold its slot any more is refused before
    /// anybody else is asked.
    pub(super) fn fence(&self, uid: &str, outlet: Option<(TunnelKey, Outlet)>, offer: impl FnOnce()) {
        self.outlets.send_if_modified(|all| {
            let ours = outlet.as_ref().map(|(key, _)| key);
            let before = all.len();
            all.retain(|key, _| key.1.as_str() != uid || Some(key) == ours);
            let gone = all.len() != before;
            let news = outlet.filter(|(key, outlet)| all.get(key) != Some(outlet));
            let changed = gone || news.is_some();
            all.extend(news);
            changed
        });
        offer();
    }

    /// Forgets bursts of ours that are gone.
    pub(super) fn retain_outlets(&self, exists: impl Fn(&TunnelKey) -> bool) {
        self.outlets.send_if_modified(|all| {
            let before = all.len();
            all.retain(|key, _| exists(key));
            all.len() != before
        });
    }

    /// Says what became of a burst of a peer: who may connect for it, if it is carried.
    pub(super) fn put_inlet(&self, key: &TunnelKey, inlet: Option<Inlet>) {
        let mut admitted = self.admitted.lock();
        match inlet {
            Some(inlet) => admitted.inlets.insert(key.clone(), inlet),
            None => admitted.inlets.remove(key),
        };
        self.publish(&admitted, key);
    }

    /// Tells the federation of one burst.
    fn publish(&self, admitted: &Admitted, key: &TunnelKey) {
        let mut inlet = admitted.inlets.get(key).cloned();
        if let Some(inlet) = inlet.as_mut().filter(|_| admitted.knocking.contains_key(key)) {
            inlet.sources.extend(self.address);
        }
        self.inlets.send_if_modified(|all| {
            let changed = all.get(key) != inlet.as_ref();
            match inlet {
                Some(inlet) => all.insert(key.clone(), inlet),
                None => all.remove(key),
            };
            changed
        });
    }
}

/// Where the connections of a burst lead; only of one that its peer holds and was given the certificate of.
pub(super) fn outlet(burst: &Burst, index_zero: &[PodView]) -> Option<(TunnelKey, Outlet)> {
    let (spec, status) = (&burst.spec, burst.status.as_ref()?);
    let peer = status.peer.as_deref().filter(|_| spec.tunnel && status.phase.occupies())?;
    let certified = |recipient: &tributary_api::burst::CredentialRecipient| {
        recipient.peer == peer && recipient.incarnation == spec.incarnation
    };
    if !status.credential_recipients.iter().any(certified) {
        return None;
    }
    let address = lead_pod(index_zero)?.addresses.first().copied()?;
    let outlet = Outlet {
        incarnation: spec.incarnation.clone(),
        lead: (address, LEAD_PORT).into(),
        // Whether one listens there depends on how the pod was made, which does not matter: it is tried.
        end: Some((address, ENDS_PORT).into()),
        hold: spec.lease.duration(),
    };
    Some(((peer.into(), offer::uid(burst).into()), outlet))
}

/// Who may connect for a burst of a peer, if it is carried: those of `pods` that the Job of UID `job` controls.
pub(super) fn inlet(hosted: &HostedBurst, job: Option<&str>, pods: &[PodView]) -> Option<Inlet> {
    let (spec, namespace) = (&hosted.spec, hosted.metadata.namespace.as_deref().unwrap_or_default());
    let ours = |pod: &&PodView| pod.namespace == namespace && job.is_some() && pod.owner.as_deref() == job;
    let own = pods.iter().filter(|pod| ours(pod) && !pod.finished);
    let sources: BTreeSet<IpAddr> = own.flat_map(|pod| pod.addresses.iter().copied()).collect();
    let hold = spec.lease.duration();
    spec.tunnel.then(|| Inlet { incarnation: spec.root.incarnation.clone(), sources, hold })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tributary_api::burst::{BurstSpec, BurstStatus, CredentialRecipient};
    use tributary_api::hosted_burst::{BurstPhase, HostedBurstSpec};

    use super::*;

    fn pod(job: &str, index: u32, ip: &str) -> PodView {
        PodView {
            namespace: "flux".into(),
            name: format!("{job}-{index}"),
            job: Some(job.into()),
            index: Some(index),
            node: Some("n".into()),
            addresses: vec![ip.parse().unwrap()],
            ..PodView::default()
        }
    }

    fn burst() -> Burst {
        let spec = BurstSpec { tunnel: true, incarnation: "job-1".into(), lease: 300.into(), ..BurstSpec::default() };
        let (peer, incarnation) = ("west".into(), "job-1".into());
        let recipient = CredentialRecipient { peer, incarnation, tunnel: true, ..CredentialRecipient::default() };
        let status = BurstStatus {
            peer: Some("west".into()),
            phase: BurstPhase::Accepted,
            credential_recipients: vec![recipient],
            ..BurstStatus::default()
        };
        let mut burst = Burst { spec, status: Some(status), ..Burst::default() };
        burst.metadata.uid = Some("uid".into());
        burst
    }

    #[test]
    fn only_a_burst_that_was_given_the_certificate_reaches_its_lead() {
        let pods = [pod("lake", 0, "10.1.0.7")];
        let (key, found) = outlet(&burst(), &pods).unwrap();
        assert_eq!((key.0.as_str(), key.1.as_str()), ("west", "uid"));
        assert_eq!((found.lead.to_string().as_str(), found.hold.as_secs()), ("10.1.0.7:8050", 300));
        assert_eq!(outlet(&burst(), &[]), None);
        type Change = fn(&mut Burst);
        let table: [(&str, Change); 5] = [
            ("by an address", |burst| burst.spec.tunnel = false),
            ("placed elsewhere", |burst| burst.status.as_mut().unwrap().peer = Some("north".into())),
            ("placed nowhere", |burst| burst.status.as_mut().unwrap().peer = None),
            ("released", |burst| burst.status.as_mut().unwrap().phase = BurstPhase::Released),
            ("another incarnation", |burst| burst.spec.incarnation = "job-2".into()),
        ];
        for (case, change) in table {
            let mut burst = burst();
            change(&mut burst);
            assert_eq!(outlet(&burst, &pods), None, "{case}");
        }
    }

    /// The danger: the brokers of a slot that was given away join beside those of its next peer.
    #[test]
    fn the_old_holder_is_refused_before_the_slot_is_offered_to_another() {
        let (tunnels, pods) = (Tunnels::new(None), [pod("lake", 0, "10.1.0.7")]);
        let (outlets, mut burst) = (tunnels.outlets(), burst());
        let carried = || outlets.borrow().keys().map(|(peer, _)| peer.to_string()).collect::<Vec<_>>();
        let mut offered = Vec::new();
        tunnels.fence("uid", outlet(&burst, &pods), || offered.push(carried()));
        burst.status.as_mut().unwrap().phase = BurstPhase::Lost;
        tunnels.fence("uid", outlet(&burst, &pods), || offered.push(carried()));
        burst.status.as_mut().unwrap().peer = Some("north".into());
        tunnels.fence("uid", outlet(&burst, &pods), || offered.push(carried()));
        assert_eq!(
            offered,
            [vec!["west".to_owned()], vec!["west".to_owned()], vec![]],
            "held over a cut, then refused"
        );
    }

    #[test]
    fn only_the_bursts_own_pods_may_connect() {
        let spec = HostedBurstSpec {
            tunnel: true,
            peer: "east".into(),
            burst_uid: "uid".into(),
            slot: "pond".into(),
            ..HostedBurstSpec::default()
        };
        let mut hosted = HostedBurst { spec, ..HostedBurst::default() };
        hosted.metadata.namespace = Some("flux".into());
        let own = |index, ip| PodView { owner: Some("job-uid".into()), ..pod("pond", index, ip) };
        let elsewhere = PodView { namespace: "other".into(), ..own(0, "10.1.0.2") };
        let ended = PodView { finished: true, ..own(1, "10.1.0.3") };
        let another = PodView { owner: Some("other-uid".into()), ..pod("lake", 0, "10.1.0.4") };
        // Whoever may make pods may give them the labels of the burst's.
        let labelled = pod("pond", 0, "10.1.0.5");
        let pods = [own(0, "10.1.0.1"), elsewhere, ended, another, labelled];
        let sources = inlet(&hosted, Some("job-uid"), &pods).unwrap().sources;
        assert_eq!(sources, ["10.1.0.1".parse().unwrap()].into());
        let early = inlet(&hosted, None, &pods).unwrap();
        assert!(early.sources.is_empty(), "before its Job is known nobody is its own");
        hosted.spec.tunnel = false;
        assert_eq!(inlet(&hosted, Some("job-uid"), &pods), None);
    }

    #[test]
    fn each_burst_has_an_entry_of_its_own_and_our_own_knocks_stay() {
        let tunnels = Arc::new(Tunnels::new(Some("10.1.0.9".parse().unwrap())));
        let key = |uid: &str| -> TunnelKey { ("east".into(), uid.into()) };
        let inlet = |ip: &str| Inlet {
            incarnation: "job-1".into(),
            sources: [ip.parse().unwrap()].into(),
            hold: Duration::from_secs(300),
        };
        let seen = tunnels.inlets();
        let sources = |uid: &str| seen.borrow().get(&key(uid)).map(|inlet| inlet.sources.len());
        tunnels.put_inlet(&key("a"), Some(inlet("10.1.0.1")));
        let knock = tunnels.knock(key("a"));
        tunnels.put_inlet(&key("b"), Some(inlet("10.1.0.2")));
        tunnels.put_inlet(&key("a"), Some(inlet("10.1.0.3")));
        assert_eq!((sources("a"), sources("b")), (Some(2), Some(1)));
        drop(knock);
        tunnels.put_inlet(&key("b"), None);
        assert_eq!((sources("a"), sources("b")), (Some(1), None));
    }

    #[test]
    fn the_end_at_this_agent_needs_an_address_and_a_port() {
        let key: TunnelKey = ("east".into(), "uid".into());
        assert!(Tunnels::new(None).inlet_of(&key).unwrap_err().contains("federation.pod_ips"));
        let tunnels = Tunnels::new(Some("10.1.0.9".parse().unwrap()));
        assert!(tunnels.inlet_of(&key).is_err());
        tunnels.listening().send_modify(|all| drop(all.insert(key.clone(), Ok(7_000))));
        assert_eq!(tunnels.inlet_of(&key).unwrap().to_string(), "10.1.0.9:7000");
    }
}

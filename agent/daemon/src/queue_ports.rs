//! What the queue and bursting need of each other: nodes one way, rooms the other.

use std::sync::Arc;

use tokio::sync::watch;
use tributary::api::hosted_burst::HostedBurst;
use tributary::bursting::Bursting;
use tributary::bursting::nodes::NodeChoice;
use tributary::bursting::provider::grants::Grants;
use tributary::bursting::provider::ledger::SlotKey;
use tributary::bursting::root::place::Wish;
use tributary::bursting::root::whole;
use tributary::bursting::timing::Times;
use tributary::contract::{NamespaceRoom, PeerName};
use tributary::queue::hosted_usage::HostedUsage;
use tributary::queue::nodes::{NodeRules, Nodes};
use tributary::queue::overflow::{Part, Peers, Sender};

/// What the nodes have room for, by what bursting sees of them.
pub(crate) fn nodes_of(bursting: &Arc<Bursting>) -> Nodes {
    fn choice(rules: &NodeRules) -> NodeChoice<'_> {
        NodeChoice { selector: &rules.selector, affinity: &rules.affinity, tolerations: &rules.tolerations }
    }
    let (now, ever) = (bursting.clone(), bursting.clone());
    Nodes {
        lacking: Arc::new(move |rules, wanted, coming| now.lacking(choice(rules), wanted, coming)),
        short: Arc::new(move |rules, wanted, groups| ever.short(choice(rules), wanted, groups)),
    }
}

/// Which peer has room for a part of a FluxJob, by what bursting knows of them.
pub(crate) fn peers_of(bursting: &Arc<Bursting>) -> Peers {
    let bursting = bursting.clone();
    let wish = |part: &Part| {
        let whole = |amount: i64| u32::try_from(amount).unwrap_or(u32::MAX);
        // As a rank map has it.
        let cores = whole(part.each.milli_cores / 1000).max(1);
        Wish {
            namespace: part.namespace.clone(),
            size: part.brokers,
            max_size: part.brokers,
            cores,
            milli_cores: match part.each.milli_cores {
                asked @ 1..1000 => whole(asked),
                _ => cores.saturating_mul(1000),
            },
            gpus: whole(part.each.gpus),
            node_gpus: whole(part.each.gpus),
            memory_mib: u64::try_from(part.each.memory).unwrap_or(0).div_ceil(1 << 20),
            peers: part.peers.iter().map(|name| name.as_str().into()).collect(),
            selector: part.selector.clone(),
            prefer: part.prefer.clone(),
            whole: part.whole,
        }
    };
    Arc::new(move || {
        let roomy = bursting.rooms();
        Box::new(move |part, coming| {
            let coming: Vec<_> = coming.iter().map(|(peer, part)| (peer.as_str().into(), wish(part))).collect();
            roomy(&wish(part), &part.evictions, &coming).map(String::from).map_err(|none| none.to_string())
        })
    })
}

/// How a FluxJob that is sent to a peer becomes a Burst.
pub(crate) fn sender(times: Times) -> Sender {
    Sender(Arc::new(move |job, wanted, overflow| whole::burst(job, wanted, overflow, &times)))
}

/// What FluxSetups leave for bursts of peers, by what the queue knows.
#[derive(Debug)]
pub(crate) struct Granted(pub HostedUsage);

impl Grants for Granted {
    fn ask(&self, guest: &HostedBurst) -> Option<Result<(), String>> {
        self.0.ask(guest)
    }

    fn take(&self, guest: &HostedBurst) -> bool {
        self.0.take(guest)
    }

    fn give_back(&self, (namespace, name): &SlotKey) {
        self.0.give_back(namespace, name);
    }

    fn left(&self, peer: &PeerName) -> Vec<NamespaceRoom> {
        self.0.left(peer.as_str())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes()
    }
}

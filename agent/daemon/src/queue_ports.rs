//! What the queue and bursting need of each other: nodes one way, rooms the other.

use std::sync::Arc;

use tokio::sync::watch;
use tributary::api::hosted_burst::HostedBurst;
use tributary::bursting::Bursting;
use tributary::bursting::nodes::{Amounts, NodeChoice};
use tributary::bursting::provider::grants::Grants;
use tributary::bursting::provider::ledger::SlotKey;
use tributary::contract::{NamespaceRoom, PeerName};
use tributary::queue::guests::Guests;
use tributary::queue::nodes::Nodes;
use tributary::queue::room::Room;

/// What the nodes have room for, by what bursting sees of them.
pub fn nodes_of(bursting: &Arc<Bursting>) -> Nodes {
    let bursting = bursting.clone();
    Arc::new(move |spec, gang, coming| {
        let amounts = |room: &Room| Amounts { milli_cores: room.milli_cores, memory: room.memory, gpus: room.gpus };
        let choice = NodeChoice {
            selector: &spec.pod.node_selector,
            affinity: &spec.pod.node_affinity,
            tolerations: &spec.pod.tolerations,
        };
        let coming: Vec<_> = coming
            .iter()
            .map(|one| (one.namespace.as_str(), one.name.as_str(), one.brokers, amounts(&one.each)))
            .collect();
        let lacking = bursting.lacking(choice, (amounts(&gang.each), gang.brokers), &coming);
        (lacking > 0).then(|| format!("the nodes have no room for {lacking} of its {} brokers", gang.brokers))
    })
}

/// What FluxSetups leave for bursts of peers, by what the queue knows.
#[derive(Debug)]
pub struct Granted(pub Guests);

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

//! What of a Burst's status outlasts the instance that it was about.

use tributary_api::burst::BurstStatus;

use super::Draft;
use crate::root::{hold, offer};

impl Draft<'_> {
    /// A new Job of the root is another instance: what was known of the burst was about the old one. The peer stays, and
    /// what it holds if its brokers can join this instance as well.
    pub(super) fn adopt_incarnation(&mut self) {
        let spec = &self.view.burst.spec;
        let incarnation = Some(spec.incarnation.clone());
        if self.status.incarnation == incarnation {
            return;
        }
        let old = std::mem::take(&mut self.status);
        let BurstStatus { mut peer, mut price, conditions, spent, releases, mut credential_recipients, .. } = old;
        credential_recipients.retain(|known| hold::can_join(known, spec));
        if let Some(holder) = spec.holder.as_ref().filter(|holder| peer.is_none() && hold::can_join(holder, spec)) {
            peer = Some(holder.peer.clone());
            price = self.price(&holder.peer.as_str().into());
            credential_recipients = vec![holder.clone()];
        }
        self.status = BurstStatus {
            peer,
            price,
            conditions,
            spent,
            releases,
            credential_recipients,
            incarnation,
            ..BurstStatus::default()
        };
    }

    /// Who threw it out when it was another Burst has not changed their mind by that.
    pub(super) fn inherit_evictions(&mut self) {
        let (burst, peers) = (&self.view.burst, &self.view.peers);
        let refused = &mut self.status.refusals;
        for eviction in burst.spec.evictions.iter().filter(|eviction| offer::stands(eviction, burst, peers)) {
            if self.status.peer.as_ref() != Some(&eviction.peer) && refused.iter().all(|one| one.peer != eviction.peer)
            {
                refused.push(eviction.clone());
            }
        }
        refused.sort_by(|a, b| a.peer.cmp(&b.peer));
    }
}

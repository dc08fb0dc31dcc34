//! What stands beside the Job and may follow the spec while it runs: Services and the pod of `spec.services`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use tributary_api::labels::{self, kubernetes, role};
use tributary_cluster::apply::Applied;
use tributary_cluster::drift::digest;
use tributary_cluster::error::chain;
use tributary_cluster::sweep::{self, Doomed, orphans};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_render::Rendered;

use super::apply::{Error, Writes};
use super::decide::{NAME_TAKEN, Upkeep};
use super::dereference::Known;
use super::refusal::{CANNOT_CREATE, what_to_do};

/// Services that are ours to sweep, by their role.
const ROLES: [&str; 4] = [role::HEADLESS, role::PORTS, role::LEAD, role::RESTFUL];

/// Why an instance runs without a Service: reason and sentence.
pub(crate) type Without = (&'static str, String);

impl Writes {
    /// Makes Services and the service pod what `rendered` says, as far as `upkeep` goes, and sweeps what it does not name.
    ///
    /// A Service whose name is taken, or that is refused, is returned: the instance runs without it. Without the one that
    /// gives brokers their names it cannot: that is the error, and comes once all else is done.
    pub(super) async fn services(
        &self,
        known: &Known,
        rendered: &Rendered,
        upkeep: Upkeep,
    ) -> Result<Vec<Without>, RequestError> {
        let (mut without, mut done) = (Vec::new(), Ok(()));
        for service in &rendered.services {
            let live = known.services.iter().find(|live| live.name_any() == service.name_any());
            let stays = match upkeep {
                Upkeep::None | Upkeep::Missing => true,
                // Only users change its type.
                Upkeep::Edited => live.is_some_and(|live| type_of(live) == type_of(service)),
                Upkeep::All => false,
            };
            if live.is_some() && stays {
                continue;
            }
            let with_port = with_port(known, service);
            match self.service(with_port.as_ref().unwrap_or(service), live.map(|live| &**live)).await {
                Ok(()) => {}
                Err(error) => match left_out(service, &error) {
                    Some(why) => without.push(why),
                    None => done = done.and(Err(error)),
                },
            }
        }
        done = done.and(self.service_pod(known, rendered.service_pod.as_ref(), upkeep).await);
        if upkeep == Upkeep::All {
            done = done.and(self.sweep(known, rendered).await);
        }
        done.map(|()| without)
    }

    async fn service(&self, service: &Service, live: Option<&Service>) -> Result<(), RequestError> {
        // A headless Service cannot become another, nor the other way round.
        if let Some(live) = live.filter(|live| is_headless(live) != is_headless(service))
            && let Some(doomed) = Doomed::of(live)
        {
            sweep::delete::<Service>(&self.writer, &doomed).await?;
            return self.applier.own(service, None).await.map(drop);
        }
        let error = match self.applier.own(service, live).await {
            Ok(_) => return Ok(()),
            Err(error) if error.cause().is_invalid() => error,
            Err(error) => return Err(error),
        };
        let mut service = service.clone();
        if clear_node_ports(&mut service) {
            // The port it had is taken by now: any other will do, and bursts are told.
            return self.applier.own(&service, live).await.map(drop);
        }
        Err(error)
    }

    /// A pod cannot be changed: one that differs, or was taken from its node, is deleted, and made again when it is gone. It
    /// stays if the API server would not take the next one.
    async fn service_pod(&self, known: &Known, wanted: Option<&Pod>, upkeep: Upkeep) -> Result<(), RequestError> {
        let revision = wanted.map(revision);
        match (&known.service_pod, wanted) {
            (None, None) => Ok(()),
            (None, Some(pod)) => {
                let mut pod = pod.clone();
                pod.annotations_mut().extend(revision.map(|revision| (labels::REVISION.to_owned(), revision)));
                let made = self.applier.own_once(&pod).await?;
                if matches!(made, Applied::Created(_)) {
                    tracing::info!(pod = %ObjectKey::of(&pod), "made the pod of spec.services");
                }
                Ok(())
            }
            (Some(live), _) => {
                let written = live.annotations().get(labels::REVISION);
                let stays = wanted.is_some() && (written.is_none() || written == revision.as_ref());
                let goes = live.metadata.deletion_timestamp.is_some();
                let is_missed = live.is_lost() && wanted.is_some();
                match Doomed::of(&**live) {
                    Some(doomed) if (is_missed || upkeep == Upkeep::All && !stays) && !goes => {
                        if let Some(next) = wanted {
                            self.applier.try_replacement(next).await?;
                        }
                        sweep::delete::<Pod>(&self.writer, &doomed).await.map(drop)
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Takes away the Service by which bursts reach the lead broker.
    pub(super) async fn remove_lead(&self, known: &Known) -> Result<(), Error> {
        if let Some(doomed) = known.lead_service().and_then(Doomed::of) {
            sweep::delete::<Service>(&self.writer, &doomed).await?;
        }
        Ok(())
    }

    async fn sweep(&self, known: &Known, rendered: &Rendered) -> Result<(), RequestError> {
        for doomed in swept(known, rendered) {
            tracing::info!(service = %doomed.key, "nothing asks for this Service any more; it is deleted");
            sweep::delete::<Service>(&self.writer, &doomed).await?;
        }
        Ok(())
    }
}

fn type_of(service: &Service) -> &str {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP")
}

/// The Services of this very MiniCluster that are not rendered any more. Bursts that still drain need the lead's.
fn swept(known: &Known, rendered: &Rendered) -> Vec<Doomed> {
    let wanted: BTreeSet<ObjectKey> = rendered.services.iter().map(ObjectKey::of).collect();
    let sweepable = known.services.iter().map(|service| &**service).filter(|service| {
        ROLES.iter().any(|role| has_role(service, role)) && (known.bursts.is_empty() || !has_role(service, role::LEAD))
    });
    let uid = known.mini_cluster.uid().unwrap_or_default();
    orphans(sweepable, &uid, (kubernetes::MANAGED_BY, labels::TRIBUTARY), &wanted)
}

/// Why an instance runs without this Service, which cannot be written; `None`: it cannot, or that passes by itself.
fn left_out(service: &Service, error: &RequestError) -> Option<Without> {
    if has_role(service, role::HEADLESS) || error.cause().is_transient() {
        return None;
    }
    let (reason, why) = match error.taken() {
        Some(taken) => (NAME_TAKEN, taken.sentence()),
        None => (CANNOT_CREATE, format!("{}; {}", chain(error), what_to_do(error.cause()))),
    };
    let instead = if has_role(service, role::LEAD) { "; or use network.type: Tunnel" } else { "" };
    Some((reason, why + instead))
}

fn has_role(service: &Service, role: &str) -> bool {
    service.labels().get(labels::ROLE).is_some_and(|value| value == role)
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

/// Digest of the pod as it is rendered.
fn revision(pod: &Pod) -> String {
    digest(&serde_json::to_value(pod).expect("Kubernetes objects have a JSON form"))
}

/// The lead's Service with the `nodePort` that it has, or had before it was deleted: brokers of bursts still connect to that one.
fn with_port(known: &Known, service: &Service) -> Option<Service> {
    let on_nodes = service.spec.as_ref()?.type_.as_deref() == Some("NodePort");
    let port = known.node_port().or(known.status().lead.node_port).filter(|_| on_nodes)?;
    let mut service = service.clone();
    service.spec.as_mut()?.ports.as_mut()?.first_mut()?.node_port = Some(port);
    Some(service)
}

/// Whether there was one.
fn clear_node_ports(service: &mut Service) -> bool {
    let ports = service.spec.as_mut().and_then(|spec| spec.ports.as_mut());
    let mut cleared = false;
    for port in ports.into_iter().flatten() {
        cleared |= port.node_port.take().is_some();
    }
    cleared
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{from_value, json};
    use tributary_api::minicluster::MiniCluster;
    use tributary_render::{Context, render};

    use super::*;
    use crate::dereference::JobState;

    /// The danger: somebody changes the port, and the Service and what the status says of it take each other's value for ever.
    #[test]
    fn the_service_of_a_lead_keeps_its_port_and_gets_it_back_once_it_was_deleted() {
        let asked = |network: &str, live: Option<i32>, told: Option<i32>| {
            let lake = json!({"metadata": {"name": "lake"}, "spec": {"containers": [{}], "flux": {"bursting":
                {"network": {"type": network}, "clusters": [{"size": 1}]}}}});
            let mut lake: MiniCluster = from_value(lake).unwrap();
            lake.status.get_or_insert_default().lead.node_port = told;
            let rendered = render(&lake, &Context::default()).unwrap();
            let live = live.map(|port| {
                let ports = [json!({"port": 8050, "nodePort": port})];
                from_value(json!({"metadata": {"name": "lake-lead"}, "spec": {"ports": ports}})).unwrap()
            });
            let services = live.into_iter().map(Arc::new).collect();
            let known = Known { services, ..Known::alone(lake, JobState::Absent) };
            let with_port = rendered.services.iter().filter_map(|service| with_port(&known, service));
            let ports =
                with_port.map(|service| (service.name_any(), service.spec.unwrap().ports.unwrap()[0].node_port));
            ports.collect::<Vec<_>>()
        };
        let lead = |port| vec![("lake-lead".to_owned(), Some(port))];
        assert_eq!(asked("NodePort", Some(30_005), Some(30_001)), lead(30_005));
        assert_eq!(asked("NodePort", Some(30_005), None), lead(30_005));
        assert_eq!(asked("NodePort", None, Some(30_001)), lead(30_001));
        assert_eq!(asked("NodePort", None, None), []);
        assert_eq!(asked("LoadBalancer", Some(30_005), Some(30_001)), []);
    }
}

//! What users and owners do.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tributary::api::labels::{self, manager};
use tributary_sandbox::annotations;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::bursting;

use super::super::ground::is_job;
use super::super::{CLUSTERS, JOBS, NAMESPACE, QUEUE, ROOTS, is_by_tunnel};
use super::{Driver, End, Wanted, name_of};

impl Driver {
    fn spec(&mut self, cluster: usize, root: &str) -> Value {
        if is_job(root) {
            let size = 1 + self.below(4);
            return json!({
                "image": "rockylinux:9", "command": "hostname", "size": size, "allowBurst": true, "suspend": false,
            });
        }
        let others: Vec<&str> = CLUSTERS.into_iter().filter(|name| *name != CLUSTERS[cluster]).collect();
        let slots = 1 + self.below(2);
        let slots: Vec<Value> = (0..slots)
            .map(|_| {
                let mut slot = json!({"size": 1 + self.below(2), "maxSize": 3});
                match self.below(3) {
                    0 => slot["peer"] = others[self.below(2)].into(),
                    1 => slot["peers"] = json!(others),
                    _ => {}
                }
                slot
            })
            .collect();
        let mut spec = bursting(1 + i32::try_from(self.below(2)).unwrap(), slots.into());
        spec["maxSize"] = 3.into();
        spec["suspend"] = false.into();
        if is_by_tunnel(root) {
            spec["flux"]["bursting"]["network"] = json!({"type": "Tunnel"});
        }
        spec
    }

    pub(super) async fn user(&mut self) {
        let all = [&ROOTS[..], &JOBS].concat();
        let (cluster, root) = (self.below(CLUSTERS.len()), all[self.below(all.len())]);
        let (what, number, first) = (self.below(10), 1 + self.below(3), self.below(2));
        let (spec, name) = (self.spec(cluster, root), name_of(cluster, root));
        let key = (cluster, root);
        if self.away(cluster) || self.doomed.contains(&key) {
            return;
        }
        let site = CLUSTERS[cluster];
        let new = |spec| Wanted { spec, written: false, may_be_over: false };
        let Some(wanted) = self.wanted.get_mut(&key) else {
            self.count("apply", format!("{site}: {name} is applied: {spec}"));
            self.wanted.insert(key, new(spec));
            return self.write(cluster, root).await;
        };
        match what {
            0 => {
                self.count("delete", format!("{site}: {name} is deleted"));
                self.delete(cluster, root).await;
            }
            1 => {
                self.count("again", format!("{site}: {name} is deleted, and made anew: {spec}"));
                self.delete(cluster, root).await;
                if !self.doomed.contains(&key) {
                    self.wanted.insert(key, new(spec));
                    self.write(cluster, root).await;
                }
            }
            // What a FluxJob asks for is fixed.
            2..=4 | 8 if is_job(root) => {}
            2 | 3 => {
                let slots = wanted.spec["flux"]["bursting"]["clusters"].as_array_mut().expect("it has slots");
                let slot = first % slots.len();
                slots[slot]["size"] = number.into();
                self.count("scale", format!("{site}: burst {slot} of {name} shall have {number}"));
                self.write(cluster, root).await;
            }
            4 | 5 if !is_job(root) => {
                wanted.spec["size"] = number.into();
                self.count("resize", format!("{site}: {name} shall have {number}"));
                self.write(cluster, root).await;
            }
            5..=7 => {
                let suspend = wanted.spec["suspend"] != true;
                wanted.spec["suspend"] = suspend.into();
                self.count("suspend", format!("{site}: suspend of {name} is {suspend}"));
                self.write(cluster, root).await;
            }
            8 => {
                self.annotated += 1;
                self.count("rekey", format!("{site}: {name} shall have another certificate"));
                let patch = json!({"metadata": {"annotations": {labels::RESTART: self.annotated.to_string()}}});
                let params = PatchParams { field_manager: Some(manager::AGENTCTL.into()), ..PatchParams::default() };
                let api = self.ground.sites[cluster].place.mini_clusters();
                self.ask(&name, async || api.patch(&name, &params, &Patch::Merge(&patch)).await).await;
            }
            _ => {
                wanted.may_be_over = true;
                self.count("finish", format!("{site}: the command of {name} ends"));
                self.finish(cluster, root, &name).await;
            }
        }
    }

    /// The command of a MiniCluster, or of a FluxJob that runs here, ends.
    async fn finish(&self, cluster: usize, root: &str, name: &str) {
        let namespace = if is_job(root) { QUEUE } else { NAMESPACE };
        let pods: Api<Pod> = Api::namespaced(self.ground.sites[cluster].client().clone(), namespace);
        let lead = format!("job-name={name},{}=0", labels::kubernetes::COMPLETION_INDEX);
        let list = self.ask(name, async || pods.list(&ListParams::default().labels(&lead)).await).await;
        for pod in list.iter().flatten() {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {annotations::EXIT: "0"}}}));
            self.ask(name, async || pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await).await;
        }
    }

    pub(super) async fn owner(&mut self) {
        let (cluster, what, chosen) = (self.below(CLUSTERS.len()), self.below(12), self.below(1_000));
        let (other, lasts) = ((cluster + 1 + self.below(2)) % CLUSTERS.len(), 1_000 + self.below(15_000) as u64);
        if self.away(cluster) {
            return;
        }
        let mut place = self.ground.sites[cluster].place.clone();
        if chosen % 4 == 0 {
            QUEUE.clone_into(&mut place.namespace);
        }
        let end = Instant::now() + Duration::from_millis(lasts);
        let (site, peer) = (CLUSTERS[cluster], CLUSTERS[other]);
        match what {
            0 => self.delete_one("evict", cluster, &place.hosted(), chosen).await,
            1 => self.delete_one("forget a Burst", cluster, &place.bursts(), chosen).await,
            2 | 3 => self.delete_one("delete a Job", cluster, &place.jobs(), chosen).await,
            4 | 5 => self.delete_one("delete a pod", cluster, &place.pods(), chosen).await,
            6 => {
                let of = place.namespace.as_str();
                let services: Api<Service> = Api::namespaced(place.client.clone(), of);
                let config_maps: Api<ConfigMap> = Api::namespaced(place.client.clone(), of);
                let slices: Api<EndpointSlice> = Api::namespaced(place.client.clone(), of);
                match chosen % 3 {
                    0 => self.delete_one("delete a Service", cluster, &services, chosen).await,
                    1 => self.delete_one("delete a ConfigMap", cluster, &config_maps, chosen).await,
                    _ => self.delete_one("delete an EndpointSlice", cluster, &slices, chosen).await,
                }
            }
            7 => self.rotate(cluster).await,
            _ if !self.break_it(cluster, &format!("peer {other}")) => {}
            8 | 9 => {
                self.count("remove a ClusterPeer", format!("{site}: ClusterPeer {peer} is deleted"));
                let peers = self.ground.sites[cluster].peers();
                self.ask(peer, async || peers.delete(peer, &DeleteParams::default()).await).await;
                self.ends.push((end, End::Peer(cluster, other)));
            }
            10 => {
                self.count("drain", format!("{site}: {peer} is drained"));
                self.change_peer(cluster, other, json!({"drain": true})).await;
                self.ends.push((end, End::Drain(cluster, other)));
            }
            _ => {
                self.count("limit", format!("{site}: {peer} may place one burst"));
                self.change_peer(cluster, other, json!({"import": {"maxBursts": 1}})).await;
                self.ends.push((end, End::Import(cluster, other)));
            }
        }
    }

    /// The authority of a cluster is replaced, as `agentctl identity rotate` asks for it.
    async fn rotate(&mut self, cluster: usize) {
        self.annotated += 1;
        self.count("rotate", format!("{}: another authority is asked for", CLUSTERS[cluster]));
        let secrets: Api<Secret> = Api::namespaced(self.ground.sites[cluster].client().clone(), SYSTEM);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::ROTATE: self.annotated.to_string()}}}));
        self.ask("the authority", async || {
            secrets.patch("tributary-identity-ca", &PatchParams::default(), &patch).await
        })
        .await;
    }

    async fn delete_one<K>(&mut self, what: &'static str, cluster: usize, api: &Api<K>, chosen: usize)
    where
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let Some(list) = self.ask(what, async || api.list(&ListParams::default()).await).await else { return };
        let own: Vec<String> =
            list.iter().map(ResourceExt::name_any).filter(|name| name != "kube-root-ca.crt").collect();
        if own.is_empty() {
            return;
        }
        let name = &own[chosen % own.len()];
        self.count(what, format!("{}: {} {name} is deleted", CLUSTERS[cluster], K::kind(&())));
        self.ask(name, async || api.delete(name, &DeleteParams::background()).await).await;
    }
}

//! What goes wrong.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use tributary_sandbox::Component;
use tributary_tests::federation::SYSTEM;

use super::super::CLUSTERS;
use super::{Driver, End};

impl Driver {
    pub(super) async fn fault(&mut self) {
        let (cluster, replica, what) = (self.below(CLUSTERS.len()), self.below(2), self.below(16));
        let (other, how) = ((cluster + 1 + self.below(2)) % CLUSTERS.len(), self.below(4));
        // Some outlast a lease.
        let most = if self.below(4) == 0 { 25_000 } else { 8_000 };
        let lasts = 500 + self.below(most) as u64;
        let end = Instant::now() + Duration::from_millis(lasts);
        let (ground, site) = (self.ground.clone(), CLUSTERS[cluster]);
        let (own, agent) = (ground.cluster(cluster), &ground.sites[cluster].agents[replica]);
        let for_long = format!("for {:.1} s", lasts as f64 / 1000.0);
        let end_of = match what {
            0..=6 if !self.break_it(cluster, &format!("agent {replica}")) => return,
            0..=3 => {
                self.count("kill an agent", format!("{site}: agent {replica} is killed {for_long}"));
                agent.kill().unwrap();
                End::Start(cluster, replica)
            }
            4 => {
                self.count("stop an agent", format!("{site}: agent {replica} is stopped {for_long}"));
                agent.stop(&ground.group).await.unwrap();
                End::Start(cluster, replica)
            }
            5 | 6 => {
                self.count("freeze an agent", format!("{site}: agent {replica} is frozen {for_long}"));
                agent.freeze(&ground.group, true).unwrap();
                End::Thaw(cluster, replica)
            }
            7 | 8 => return self.move_leader(cluster, how).await,
            9..=11 if self.away(cluster) => return,
            9 | 10 => {
                self.break_it(cluster, "api");
                if how < 2 {
                    self.count("kill an API server", format!("{site}: the API server is killed {for_long}"));
                    own.stop_component(Component::ApiServer).unwrap();
                    End::ApiServer(cluster)
                } else {
                    self.count("freeze an API server", format!("{site}: the API server is frozen {for_long}"));
                    own.pause_component(Component::ApiServer).unwrap();
                    End::Resume(cluster, Component::ApiServer)
                }
            }
            11 => {
                let component =
                    [Component::ControllerManager, Component::Scheduler, Component::Kwok, Component::Etcd][how];
                if component == Component::Etcd {
                    self.break_it(cluster, "api");
                    self.count("kill etcd", format!("{site}: etcd is killed {for_long}"));
                    own.stop_component(component).unwrap();
                    End::Etcd(cluster)
                } else if self.break_it(cluster, &format!("{component:?}")) {
                    self.count("freeze a controller", format!("{site}: {component:?} is frozen {for_long}"));
                    own.pause_component(component).unwrap();
                    End::Resume(cluster, component)
                } else {
                    return;
                }
            }
            _ => {
                let (from, to) = (cluster.min(other), cluster.max(other));
                if !self.break_it(from, &format!("way to {to}")) {
                    return;
                }
                self.cut(from, to, how, &for_long);
                End::Cut(from, to)
            }
        };
        self.ends.push((end, end_of));
    }

    /// Cuts both ways between two clusters, or what is sent in one direction.
    fn cut(&mut self, from: usize, to: usize, how: usize, for_long: &str) {
        let ground = self.ground.clone();
        let (one, two) = (&ground.ways[&(from, to)], &ground.ways[&(to, from)]);
        let (a, b) = (CLUSTERS[from], CLUSTERS[to]);
        let (what, line, cuts) = match how {
            0 => ("cut one direction", format!("nothing gets from {a} to {b}"), [&one.cut_there, &two.cut_back]),
            1 => ("cut one direction", format!("nothing gets from {b} to {a}"), [&two.cut_there, &one.cut_back]),
            _ => ("cut", format!("nothing gets through between {a} and {b}"), [&one.cut, &two.cut]),
        };
        self.count(what, format!("{line} {for_long}"));
        for cut in cuts {
            cut.send_replace(true);
        }
    }

    /// The Lease is deleted, or somebody else takes it and does not renew it.
    async fn move_leader(&mut self, cluster: usize, how: usize) {
        if self.away(cluster) {
            return;
        }
        let leases: Api<Lease> = Api::namespaced(self.ground.sites[cluster].client().clone(), SYSTEM);
        let name = "tributary-agent";
        if how == 0 {
            self.count("delete a Lease", format!("{}: the Lease is deleted", CLUSTERS[cluster]));
            self.ask(name, async || leases.delete(name, &DeleteParams::default()).await).await;
            return;
        }
        self.count("take a Lease", format!("{}: somebody takes the Lease", CLUSTERS[cluster]));
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "somebody"}}));
        self.ask(name, async || leases.patch(name, &PatchParams::default(), &patch).await).await;
    }
}
